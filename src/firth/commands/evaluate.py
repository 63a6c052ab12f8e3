"""`firth evaluate`: measure a run's newest or best checkpoint, or a model on a labelled file.

firth evaluate --workdir runs/mini [--step N]
firth evaluate --model runs/snippets --data test.csv
firth evaluate --models runs/kn5,runs/gpt --data test/ --tune valid/
firth evaluate --models runs/kn5,runs/gpt --pairs blimp.jsonl.gz
"""

import dataclasses
import json
from pathlib import Path

from firth.commands.arguments import (
    Parser,
    add_texts,
    check_output,
    integers,
    names,
    refuse_candidates,
    say_dtype,
    whole,
)
from firth.errors import FirthError
from firth.storage.remote import is_url

OF_RUNS = ("workdir", "step")
OF_MIXTURES = ("tune", "cache", "neural_cache", "dynamic", "window", "ends")
OF_PAIRS = ("pairs", "only", "within_word", "pseudo", "end")


def main(argv: list[str]) -> int:
    """`firth evaluate`."""
    parser = Parser(
        prog="firth evaluate",
        description="Measure a run's newest or best checkpoint (--workdir), or a fine-tuned model "
        "on a labelled file (--model and --data).",
        epilog="With --workdir, --config.eval.FIELD=VALUE and --config.data.heldout_store=STORE "
        "override fields for the evaluation: another test set, more of its text, a longer memory, "
        "rows of another length.",
    )
    add = parser.add_argument
    add("--json", action="store_true", help="print one JSON object")
    add("--workdir", help="the folder of a run of `firth train`")
    add("--step", type=whole, help="checkpoint (default: the best, else the newest)")
    add("--model", help="published or Firth directory, workdir, or hf:org/name; A,B: mean")
    add("--models", type=names, help="language models to compare and to mix, A,B,...")
    add("--data", help="a labelled .csv, .tsv or .jsonl; - for stdin; with --models a store")
    add("--tune", help="with --models: the store that tunes the weights of mixtures (else equal)")
    add("--cache", type=integers, default=[], help="with --models: add caches of so many tokens")
    add(
        "--neural-cache",
        metavar="SIZE[,theta=X]",
        help="with --models: add neural caches of so many tokens, of the models with memory",
    )
    add(
        "--dynamic",
        metavar="RATE[,length=N][,train=STORE][,decay=X]",
        help="with --models: add those models as they go on learning from the text",
    )
    add("--window", type=whole, default=128, help="with --models: tokens a neural one reads (128)")
    add(
        "--ends",
        default="sentence",
        help="with --models: what <eos> ends (sentence; document, none)",
    )
    add("--pairs", type=names, help="with --models: .jsonl files of sentence_good, sentence_bad")
    add(
        "--only",
        metavar="FILE|all",
        help="with --pairs: a .json file of the pairs to judge, {UID: [pairID, ...]} (BabyLM's, if "
        "it lies beside them: then those count, and one line is of all)",
    )
    add(
        "--within-word",
        action="store_true",
        help="with --pairs: masked models also mask the later pieces of a word",
    )
    add("--pseudo", action="store_true", help="with --pairs: XLNet predicts from all other tokens")
    add(
        "--end",
        action="store_true",
        help="with --pairs: causal models also score the end of a sentence",
    )
    add("--label", help="column of the label, a name or number (found by the column's name)")
    add(
        "--output",
        help="a .csv, .tsv or .jsonl file for the rows with their predictions; with --pairs a "
        ".jsonl of the pairs with their scores, or a .json, .csv or .tsv of the table",
    )
    add_texts(parser)
    args, changes = parser.parse_with_fields(argv)
    given = [name for name, value in vars(args).items() if value != parser.get_default(name)]
    if args.pairs and args.models:
        _judge(args, given, changes)
        return 0
    if args.models:
        _compare(args, given, changes)
        return 0
    if only := [name for name in given if name in (*OF_MIXTURES, *OF_PAIRS)]:
        raise FirthError(f"--{only[0].replace('_', '-')} is an option of --models")
    of_files = [name for name in given if name not in (*OF_RUNS, "json")]
    if bool(args.workdir) == bool(args.model and args.data) or (args.workdir and of_files):
        raise FirthError(
            "expected --workdir, with --step and fields, or --model and --data, with the other "
            "options"
        )
    if args.workdir:
        _measure_run(args, changes)
        return 0
    if changes or args.step is not None:
        parser.error(f"{(*changes, '--step')[0]} is no option of --model and --data")
    _measure_file(args, parser)
    return 0


def _measure_run(args, changes: list[str]):
    from firth.run.evaluator import evaluate

    if not is_url(args.workdir) and not Path(args.workdir).is_dir():
        raise FirthError(f"--workdir {args.workdir}: no such folder")
    results = evaluate(args.workdir, args.step, changes)
    if args.json:
        print(json.dumps(results))
        return
    for name, value in results.items():
        print(f"{name:<32} {value:.6g}" if isinstance(value, float) else f"{name:<32} {value}")


def _compare(args, given: list[str], changes: list[str]):
    from firth.inference.language import dynamic, neural_cache
    from firth.inference.language.compare import compare, table

    own = (*OF_MIXTURES, "models", "data", "json", "dtype")
    if not args.data or changes or [name for name in given if name not in own]:
        raise FirthError(
            "--models goes with --pairs FILE, or with --data STORE and, if wanted, --tune STORE, "
            "--cache, --neural-cache, --dynamic, --window, --ends, --dtype and --json"
        )
    cached = neural_cache.parse(args.neural_cache) if args.neural_cache else None
    if cached and not (cached.theta or args.tune):
        raise FirthError(
            f"--neural-cache {args.neural_cache}: give theta, as in {cached.size},theta=0.3, or "
            "--tune STORE, on which the best one is found"
        )
    rows = compare(
        args.models,
        args.data,
        tuned_on=args.tune,
        caches=args.cache,
        neural_cache=cached,
        dynamic=dynamic.parse(args.dynamic) if args.dynamic else None,
        window=args.window,
        ends=args.ends,
        dtype=args.dtype,
    )
    print(json.dumps([dataclasses.asdict(row) for row in rows]) if args.json else table(rows))


def _judge(args, given: list[str], changes: list[str]):
    from firth.inference.language.minimal_pairs import read_pairs, sentences, totals
    from firth.inference.language.models import load_model, short_names
    from firth.inference.language.pair_tables import as_json, check_suffix, judge, table, written
    from firth.inference.score import kind_of
    from firth.progress import Progress
    from firth.storage.local import write_bytes

    own = (*OF_PAIRS, "models", "json", "output", "batch_size", "dtype")
    if changes or [name for name in given if name not in own]:
        raise FirthError(
            "--pairs goes with --models and, if wanted, --only, --within-word, --pseudo, --end, "
            "--output, --batch-size, --dtype and --json"
        )
    output = check_output(args.output) if args.output else None
    if output:
        check_suffix(output.suffix)
    names = short_names(args.models)
    pairs, found, scores = read_pairs(args.pairs, args.only), {}, {}
    count = sentences(pairs)
    models = {
        name: load_model(source, dtype=args.dtype)
        for name, source in zip(names, args.models, strict=True)
    }
    own_kinds = set(map(kind_of, models.values()))
    kinds = {name: kind_of(model, args.pseudo) for name, model in models.items()}
    for option, fits, word in (
        ("pseudo", "permutation" in own_kinds, "permutation"),
        ("within_word", "pseudo" in kinds.values(), "masked"),
        ("end", "causal" in own_kinds, "causal"),
    ):
        if getattr(args, option) and not fits:
            raise FirthError(
                f"--{option.replace('_', '-')} is for {word} models, and --models has none"
            )
    for name, model in models.items():
        say_dtype(model)
        within_word = args.within_word and kinds[name] == "pseudo"
        bar = Progress(count, 0, name)
        try:
            scores[name] = totals(
                model,
                pairs,
                args.batch_size,
                bar,
                within_word=within_word,
                pseudo=args.pseudo and kinds[name] == "pseudo",
                end=args.end and kinds[name] == "causal",
            )
        finally:
            bar.close()
        kind = kinds[name] + ", within words" * within_word
        found[name] = judge(pairs, scores[name], kind)
    if output:
        write_bytes(output, written(output.suffix, found, pairs, scores).encode())
    print(as_json(found) if args.json else table(found))


def _measure_file(args, parser):
    from firth.inference.predictions.classifier import checked_threshold, warn_of_cut
    from firth.inference.predictions.evaluate import Gold, evaluate
    from firth.inference.predictions.kinds import own_command
    from firth.inference.predictions.layout import Layout, output_format
    from firth.inference.predictions.load import load_classifier, open_rows
    from firth.inference.predictions.reading import Reading
    from firth.inference.predictions.report import report
    from firth.progress import Progress
    from firth.storage.local import write_bytes

    if args.output == "-":
        raise FirthError("--output -: the measures are printed there; give a file")
    if own := own_command(args.model):
        own.evaluate(args, parser, check_output(args.output) if args.output else None)
        return
    refuse_candidates(args)
    reading = Reading(args.batch_size, args.max_length, args.long, args.stride, args.packed)
    rows = open_rows(args.model, args.data, args)
    label = rows.label(args.label)
    output = check_output(args.output) if args.output else None
    kind = output_format(args.output, rows) if args.output else "jsonl"
    classifier = load_classifier(args.model, args.dtype, rows.size, args.task)
    say_dtype(classifier.encoder)
    threshold = checked_threshold(classifier, args.threshold)
    gold, parts = Gold(classifier, label, rows), []
    layout = Layout(kind, rows, classifier.labels, threshold)

    def check(row):
        gold.value(row)
        layout.check(row)

    def write(window, outputs_NC):
        head = b"" if parts else layout.head()
        parts.append(head + layout.text(window, outputs_NC))

    total = rows.count(check)
    bar = Progress(total, 0, "evaluate", quiet=total is None)
    try:
        options = dict(threshold=threshold, progress=bar)
        evaluation = evaluate(
            classifier, rows, gold, reading, write=write if output else None, **options
        )
    finally:
        bar.close()
    if output:
        write_bytes(output, b"".join(parts))
    if args.json:
        print(json.dumps(dataclasses.asdict(evaluation), ensure_ascii=False))
    else:
        print(f"{rows.name}: texts in {', '.join(rows.texts)}, labels in {label}\n")
        print(report(evaluation))
    examples = evaluation.examples
    warn_of_cut(evaluation.cut, examples, classifier, reading, ("--max-length", "--long"))
