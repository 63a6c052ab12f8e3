"""Tag words, as entities or parts of speech: a bidirectional LSTM with a CRF (Lample et al. 2016).

    firth train --config tagger.py:crf=true --workdir runs/ner --config.data.train=eng.train \\
        --config.data.dev=eng.testa --config.data.test=eng.testb
    firth evaluate --model runs/ner --data eng.testb
    firth predict --model runs/ner --input sentences.txt --output tagged.tsv

Arguments: `tagger.py[:SIZE][,crf=true][,init=DIR][,features=DIR[,layers=CHOICE]][,context=document]
[,length=N]`. Sizes: `tiny` (50 wide, for trying things out), `small` (100) and `paper` (200 in each
direction, word vectors of 100).

Files have a word a line and an empty line after each sentence (plain, .gz or .xz): .conllu is
Universal Dependencies, .tsv has tabs, any other ending white space between its columns, as
CoNLL-2003 has. data.text and data.label name the columns, from 0, or from -1 backwards; the first
and the last, or form and upos, are the default. Tags of entities may be IOB1, BIO, BIOES or BILOU;
they are read as BIO. Without data.dev, data.dev_fraction of train is the dev split.

`features=DIR` adds the frozen vectors of a published or trained encoder to each word's own
(`minilm`, a workdir, hf:org/name); they are computed once and stay in the workdir, or in
data.feature_folder, where runs share them. `layers` is last, second_to_last, embeddings,
sum_last_four, concat_last_four, sum_all (sums have learnt weights; Devlin et al. 2019, table 7),
mix (sum_all and the embeddings, as of ELMo) or the number of a layer, 0 being the embeddings. With
model.embedding_size=0 and model.filters=0 they stand alone. `init=DIR` is another thing: it
fine-tunes that encoder itself, reading each word by its first piece, by BERT's settings.
data.vectors is a file of word vectors (.vec, .txt, .bin) to start from.

DIR may be an ELMo, a workdir of elmo.py or a released folder: `features=elmo,layers=mix` learns the
weights of its three layers (Peters et al. 2018, equation 1). It reads whole words by characters.

`context=document` fills the encoder's rows with neighbouring sentences of the same document
(-DOCSTART- of CoNLL-2003, `# newdoc` of CoNLL-U; without such the file is one). Rows overlap, each
begins data.stride pieces after the last (0: half a row), and a word is tagged where it has the most
context.

Measured: accuracy, and of entities precision, recall and F1 as conlleval counts them. The baseline
gives each word its most frequent tag in train: entity F1 .64 on the dev set of CoNLL-2003, .54 on
its test set. Expected of `paper` with vectors of 100 dimensions trained on a large corpus, on the
test set: 90.94 (Lample et al.), 91.21 (Ma and Hovy).

Departures from the paper and its code:
- Characters: filters over a word's bytes, as in Ma and Hovy's network, where Lample et al. have a
  second LSTM. Both papers report gains of one kind.
- Optimiser: Adam at 1e-3 with batches of 32, where the papers have plain gradient descent by
  single sentences or batches of 10. It takes a fraction of the time.
- Digits: the paper's code reads every digit as 0. Here numbers are words as others.
- Constraints: decoding lets no I-X begin an entity (objective.constrain). The papers' may.
- ELMo's states: zeros before each sentence. Its released code goes on from batch to batch, so that
  vectors depend on the sentences before.
"""

from firth.configs import common
from firth.errors import FirthError
from firth.recipe import parse_arg, suggest

# size -> (width of a direction, of words' vectors, of a character's, filters)
SIZES = {"tiny": (50, 50, 16, 16), "small": (100, 100, 30, 30), "paper": (200, 100, 30, 30)}


def get_config(arg=None):
    arg = parse_arg(
        arg,
        size="paper",
        crf=False,
        init="",
        features="",
        layers="last",
        context="sentence",
        length=0,
    )
    if arg.size not in SIZES:
        raise FirthError(f"tagger.py: size={arg.size!r} is unknown{suggest(arg.size, SIZES)}")
    if arg.init and arg.features:
        raise FirthError(
            "tagger.py: init fine-tunes an encoder, features keeps it frozen; give one of them"
        )
    if arg.layers != "last" and not arg.features:
        raise FirthError(f"tagger.py: layers={arg.layers} chooses among those of features=DIR")
    if arg.context != "sentence" and not (arg.init or arg.features):
        raise FirthError(
            f"tagger.py: context={arg.context} is an encoder's; give init=DIR or features=DIR"
        )
    width, words, characters, filters = SIZES[arg.size]
    c = common.run(
        seeds="",  # "0,1,2": one run each under <workdir>/seed-N, and a summary
        epochs=3.0 if arg.init else 30.0,
        steps=0,  # 0: as many as the epochs make
        batch_size=32,
        init_from=arg.init,
        log_every=50,
        eval=dict(every=0, epochs=1.0, batch_size=64),  # every: steps; 0: by epochs
    )
    c.checkpoint.update(every=0, keep=1, best="task")

    if arg.init:
        c.model = common.execution(
            from_init=True,  # family and dimensions are those of the weights
            dropout=0.1,
            attention_dropout=0.1,
            classifier_dropout=0.1,
        )
    else:
        c.model = common.execution(
            family="tagger",
            vocab_size=0,  # 0: the words of train, and those of data.vectors
            embedding_size=words,  # of a word's own vector; 0: it has none
            character_size=characters,
            filters=filters,  # over the characters of a word; 0: it has none
            filter_width=3,  # characters
            word_length=24,  # bytes of a word that count, its two ends included
            features=arg.features,  # an encoder whose frozen vectors are read beside these
            feature_layers=arg.layers,  # of the encoder: a choice, or a number from 0
            feature_context=arg.context,  # in which the encoder reads: sentence or document
            num_layers=1,
            hidden_size=width,  # of each direction
            cell="lstm",  # or "elman"
            dropout=0.5,  # of words' vectors and of each layer's output
            state_dropout=0.0,  # of the state that a step reads, one mask for a row
            init_range=0.08,  # of the layers' parameters, to both sides of zero
            forget_bias=1.0,  # added to the forget gate's initial bias
            classifier_dropout=0.0,  # the layers' output has had its own
        )

    c.data = common.loading(
        task="",  # its name in logs
        dir="",  # the base of relative paths
        train="",  # files of sentences with tags
        dev="",
        test="",  # scored at the end
        dev_fraction=0.1,  # of train, where there is no dev split
        text="",  # the column of words
        label="",  # the column of tags
        vectors="",  # a file of word vectors to start from
        tokenizer="",  # "": the words of train, or the tokenizer that comes with the weights
        length=arg.length or 128,  # words (with init: pieces) of a row; longer ones are divided
        context=arg.context if arg.init else "sentence",  # of a row: or "document"
        stride=0,  # pieces between the beginnings of rows of a document; 0: half a row
        feature_folder="",  # where the vectors of features are kept; "": the workdir
    )

    c.objective = dict(
        name="tag",
        crf=arg.crf,  # score sequences of tags
        constrain=True,  # decode no I-X but after a B-X or I-X; for a CRF
        unknown_rate=0.0 if arg.init else 0.5,  # of words that occur once, read as unknown
    )

    c.optimizer = common.optimizer(
        name="adamw",
        b1=0.9,
        b2=0.999,
        eps=1e-6 if arg.init else 1e-8,
        bias_correction=True,
        weight_decay=0.01 if arg.init else 0.0,
        decay_exclude=("norm/", "bias$"),
        clip_norm=1.0 if arg.init else 5.0,
    )
    if arg.init:
        c.schedule = dict(name="xlnet_poly", lr=5e-5, warmup=0.1)
    else:
        c.schedule = dict(name="constant", lr=1e-3, warmup=0)
    return c
