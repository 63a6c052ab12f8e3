"""The tasks of this experiment: files, settings, metrics, and what others have published."""

import gzip
import json
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from firth.display.published import SANH, published

WAYS = ("tuned", "frozen")
ELMO = "BCN 51.4, with ELMo 54.7 (Peters et al. 2018)"
AG_NEWS = "ULMFiT 95.0 with 120,000 texts (Howard and Ruder 2018)"
IMDB = "ULMFiT 95.4 (Howard and Ruder 2018), DistilBERT 92.8 (Sanh et al. 2019)"
SHARED_TASK = "93.5, the best of the shared task (2000)"
SQUAD = "BERT-base 88.5 on SQuAD v1.1 with 87,599 questions (Devlin et al. 2019)"


@dataclass(frozen=True)
class Task:
    """A task and the settings it is trained with.

    Attributes:
      kind: "texts" (finetune.py), "tags" (tagger.py) or "answers" (squad.py).
      files: field of the recipe -> path; "{data}", "{work}" and "{seed}" are filled in.
      metrics: as shares; the first chooses the checkpoint.
      epochs: of fine-tuning.
      arguments: of the recipe, beside its `init`.
      fields: other fields of the fine-tuned run and of the frozen one.
      tuned: other fields of the fine-tuned run alone.
      whole: of long texts, (a file of the test split, tokens from one window to the next): the
        model reads them whole, too, and averages over the windows.
      published: (split, metric) -> figures of comparable models.
    """

    kind: str
    files: Mapping[str, str]
    metrics: tuple[str, ...]
    epochs: float
    arguments: str = ""
    fields: Mapping[str, object] = field(default_factory=dict)
    published: Mapping[tuple[str, str], str] = field(default_factory=dict)
    tuned: Mapping[str, object] = field(default_factory=dict)
    whole: tuple[str, int] | tuple[()] = ()


def glue(task: str) -> str:
    """What Sanh et al. have on dev, and MiniLM of 12 layers where its metric is known."""
    near = {}
    for one in published(task, "dev"):
        if one.source == SANH or (one.source == "Wang et al. 2020" and one.metric):
            near.setdefault(one.source, []).append(f"{one.model} {100 * one.value:.1f}")
    return "; ".join(f"{source}: {', '.join(said)}" for source, said in near.items())


def texts(name: str, folder: str, metrics: tuple, epochs: float, length: int, **published) -> Task:
    """A task that finetune.py knows by name, in packed rows; of GLUE only the server has test."""
    figures = {(split, metrics[0]): text for split, text in published.items()}
    files, fields = {"data.dir": f"{{data}}/{folder}"}, {"data.packed": True}
    return Task("texts", files, metrics, epochs, f"task={name},length={length}", fields, figures)


def answers(files: str, metrics: tuple, epochs: float, version: str, **published) -> Task:
    """Questions and texts; `files` has a "{split}" in it."""
    figures = {(split, metrics[0]): text for split, text in published.items()}
    paths = {f"data.{split}": files.replace("{split}", split) for split in ("train", "dev", "test")}
    # Four rows at once: a quarter faster on a CPU, in a fifth of the memory.
    tuned = {"accumulate": {"v1": 8, "v2": 12}[version]}
    return Task("answers", paths, metrics, epochs, f"{version},length=256", {}, figures, tuned)


def tags(paths, metric: str, epochs: float, arguments: str = "", **published) -> Task:
    """Words with tags; `paths` are those of train, dev ("": a tenth of train) and test."""
    splits = zip(("train", "dev", "test"), paths, strict=True)
    files = {f"data.{split}": path for split, path in splits if path}
    metrics = (metric,) if metric == "accuracy" else (metric, "accuracy")
    figures = {(split, metric): text for split, text in published.items()}
    return Task("tags", files, metrics, epochs, arguments, published=figures)


CONLL = [f"{{data}}/conll2003/eng.{part}" for part in ("train", "testa", "testb")]
EWT = [f"{{data}}/ud_english_ewt/en_ewt-ud-{part}.conllu" for part in ("train", "dev", "test")]
BROWN = [f"{{work}}/brown-{part}.tsv" for part in ("train", "dev", "test")]
CHUNKS = ("{work}/chunks-train.conll", "", "{work}/chunks-test.conll")
BERT_NER = {"dev": "BERT-base 96.4, cased", "test": "BERT-base 92.4, cased"}  # Devlin et al. 2019

TASKS = {
    "rte": texts("rte", "glue", ("accuracy",), 5.0, 128, dev=glue("rte")),
    "wnli": texts("wnli", "glue", ("accuracy",), 5.0, 128, dev=glue("wnli")),
    "mrpc": texts("mrpc", "glue", ("f1", "accuracy"), 5.0, 128, dev=glue("mrpc")),
    "stsb": texts("stsb", "glue", ("pearson", "spearman"), 4.0, 128, dev=glue("stsb")),
    "cola": texts("cola", "glue", ("matthews", "accuracy"), 5.0, 64, dev=glue("cola")),
    "sst5": texts("sst5", "sst_trees", ("accuracy",), 3.0, 64, test=ELMO),
    "codah": Task(
        "texts",
        {"data.dir": "{data}/codah/fold_{seed}"},
        ("accuracy",),
        3.0,
        "task=codah,length=64",
        {"batch_size": 16, "eval.batch_size": 16},
    ),
    # A row of a document has about four sentences: so many updates as ner_sentence has.
    "ner": replace(
        tags(CONLL, "entity_f1", 3.0, "context=document", **BERT_NER), tuned={"batch_size": 8}
    ),
    "ner_sentence": tags(CONLL, "entity_f1", 3.0, **BERT_NER),
    "pos": tags(EWT, "accuracy", 3.0),
    "chunking": tags(CHUNKS, "entity_f1", 3.0, test=SHARED_TASK),
    "xquad": answers("{work}/xquad-{split}.json", ("f1", "exact"), 4.0, "v1", test=SQUAD),
    "subjqa": answers("{data}/qa/subjqa-{split}.squad2.json", ("f1", "exact"), 3.0, "v2"),
    "agnews": texts("agnews10k", "ag_news_partial", ("accuracy",), 3.0, 128, test=AG_NEWS),
    "sst2": replace(
        texts("sst2", "glue", ("accuracy",), 2.0, 64, dev=glue("sst2")),
        tuned={"schedule.lr": 5e-5, "epochs": 5.0},
    ),
    "brown": tags(BROWN, "accuracy", 1.0),
    "imdb": replace(
        texts("imdb", "imdb", ("accuracy",), 1.0, 256, test=IMDB),
        tuned={"accumulate": 8},
        whole=("{data}/imdb/test.jsonl.xz", 256),
    ),
}


def recipe_of(args, name: str, way: str, seed: int) -> tuple[str, dict]:
    """(recipe, fields) of a run. args.init is the encoder, args.data and args.workdir folders."""
    task, init = TASKS[name], args.init
    places = {"data": args.data, "work": args.workdir, "seed": seed}
    fields = {key: path.format(**places) for key, path in task.files.items()} | dict(task.fields)
    fields |= {"epochs": task.epochs, "log_every": 50}
    if way == "tuned":
        fields |= {"schedule.lr": 1e-4} | dict(task.tuned)
    elif task.kind != "tags":
        fields["schedule.lr"] = 2e-3
    if task.kind == "texts":
        more = ",frozen=true,pooling=mean" if way == "frozen" else ""
        return f"finetune.py:{task.arguments},init={init}{more}", fields
    if task.kind == "answers":
        return f"squad.py:{task.arguments},init={init},frozen={way == 'frozen'}", fields
    more = f",{task.arguments}" if task.arguments else ""
    if way == "tuned":
        return f"tagger.py:init={init}{more}", fields
    fields |= {
        "model.embedding_size": 0,
        "model.filters": 0,
        "objective.unknown_rate": 0.0,
        "data.feature_folder": args.workdir / "features",
        "epochs": 2 * task.epochs,
    }
    return f"tagger.py:small,features={init},layers=concat_last_four{more}", fields


# -------------------------------------------------------------------------------------- files


def make_files(data: Path, work: Path) -> None:
    """Write the files that their makers distribute in another form, if they are not there."""
    for first, function in {
        "brown-test.tsv": brown,
        "chunks-test.conll": chunks,
        "xquad-test.json": xquad,
    }.items():
        if not (work / first).exists():
            function(data, work)


def brown(data: Path, work: Path) -> None:
    """The Brown corpus; of the texts in their order, every tenth is test, the one before it dev.

    Tags lose the marks of headlines, titles and citations (-hl, -tl, -nc).
    """
    with zipfile.ZipFile(data / "nltk" / "brown.zip") as archive:
        names = sorted(n for n in archive.namelist() if re.fullmatch(r"brown/c[a-r]\d\d", n))
        texts = [archive.read(name).decode() for name in names]
    split_of: Callable[[int], str] = lambda i: {9: "test", 8: "dev"}.get(i % 10, "train")  # noqa: E731
    for split in ("train", "dev", "test"):
        sentences = []
        for number, text in enumerate(texts):
            for line in text.splitlines() if split_of(number) == split else ():
                words = [token.rpartition("/")[::2] for token in line.split()]
                rows = [f"{word}\t{re.sub('(-hl|-tl|-nc)+$', '', tag)}\n" for word, tag in words]
                sentences += ["".join(rows) + "\n"] if rows else []
        (work / f"brown-{split}.tsv").write_text("".join(sentences), encoding="utf-8")


def chunks(data: Path, work: Path) -> None:
    """CoNLL-2000's two files out of their archive."""
    with zipfile.ZipFile(data / "nltk" / "conll2000.zip") as archive:
        for split in ("train", "test"):
            text = archive.read(f"conll2000/{split}.txt").decode()
            (work / f"chunks-{split}.conll").write_text(text, encoding="utf-8")


def xquad(data: Path, work: Path) -> None:
    """The last 8 of XQuAD's 48 articles are test, the 5 before them dev; QED joins the rest."""
    read = lambda name: json.loads(gzip.decompress((data / "qa" / name).read_bytes()))["data"]  # noqa: E731
    articles = read("xquad.en.json.gz")
    parts = {
        "train": articles[:35] + read("qed-dev.squad.json.gz"),
        "dev": articles[35:40],
        "test": articles[40:],
    }
    for split, own in parts.items():
        text = json.dumps({"version": "1.1", "data": own})
        (work / f"xquad-{split}.json").write_text(text, encoding="utf-8")
