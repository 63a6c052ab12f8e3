"""`firth prepare` against the tokenizer alone: same text, same vocabulary, same cores.

    python experiments/prepare_throughput/bench.py [--rounds 3] [--megabytes 55] [--cores 2]

Both sides run in turn; the figures are medians over the rounds. `prepare` is the whole command as
a user runs it: it starts its processes, reads the .jsonl.xz, decompresses, parses, segments,
tokenises and writes a verified store. The tokenizer alone gets the paragraphs as strings in memory
and keeps nothing: `encode_batch_fast` of the tokenizers library on all cores, whole documents or
single paragraphs, whichever is faster; for the unigram model sentencepiece's own batch encoder.
"""

import argparse
import json
import lzma
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DATA = Path(os.environ.get("FIRTH_DATA", Path(__file__).parents[3] / "shared" / "data"))
CORPUS = DATA / "wikipedia_en_sample" / "articles.jsonl.xz"
TOKENIZERS = {
    "wordpiece (bert-base-uncased)": "bert-base-uncased-vocab.txt",
    "byte-level bpe (roberta-base)": "roberta-base-vocab.json",
    "unigram (xlnet-base-cased)": "xlnet-base-cased-spiece.model",
}
COMMAND = "import sys; from firth.data.prepare import main; sys.exit(main(sys.argv[1:]))"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=float, default=55, help="of text to take")
    parser.add_argument("--cores", type=int, default=2)
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[: args.cores]
    os.sched_setaffinity(0, cores)
    os.environ["RAYON_NUM_THREADS"] = str(len(cores))
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.jsonl.xz"
        documents = sample(corpus, args.megabytes)
        size = sum(map(len, documents)) / 1e6
        print(f"{len(documents):,} documents, {size:.1f} M characters, {len(cores)} cores")
        for title, name in TOKENIZERS.items():
            alone, whole = [], []
            for round in range(args.rounds):
                alone.append(time_tokenizer(DATA / "vocabs" / name, documents))
                store = Path(folder) / f"{Path(name).stem}-{round}"
                whole.append(time_prepare(corpus, DATA / "vocabs" / name, store, len(cores)))
            tokens = json.loads((store / "manifest.json").read_text())["tokens"]
            report(title, tokens, size, alone, whole)


def sample(path: Path, megabytes: float) -> list[str]:
    """Write the first articles to `path`, compressed as they were, and return their texts."""
    documents, size = [], 0
    with lzma.open(CORPUS, "rt", encoding="utf-8") as source, lzma.open(path, "wt") as target:
        for line in source:
            if size >= megabytes * 1e6:
                break
            documents.append(json.loads(line)["text"])
            size += len(documents[-1])
            target.write(line)
    return documents


def time_tokenizer(vocabulary: Path, documents: list[str]) -> float:
    """Seconds that the bare library takes for the text."""
    paragraphs = [line for text in documents for line in text.split("\n") if line]
    if vocabulary.suffix == ".model":
        import sentencepiece

        model = sentencepiece.SentencePieceProcessor(model_file=str(vocabulary))
        threads = int(os.environ["RAYON_NUM_THREADS"])
        return seconds(lambda: model.encode(paragraphs, out_type=int, num_threads=threads))
    from firth.data.tokenize import load_tokenizer

    backend = load_tokenizer(vocabulary)._backend
    return min(
        seconds(lambda: backend.encode_batch_fast(texts, add_special_tokens=False))
        for texts in (documents, paragraphs)
    )


def time_prepare(corpus: Path, vocabulary: Path, store: Path, workers: int) -> float:
    """Seconds of the whole command in a process of its own."""
    options = [f"--input={corpus}", f"--tokenizer={vocabulary}", f"--output={store}"]
    options += [f"--workers={workers}"]
    return seconds(
        lambda: subprocess.run(
            [sys.executable, "-c", COMMAND, *options], check=True, stdout=subprocess.DEVNULL
        )
    )


def seconds(run) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def report(title: str, tokens: int, size: float, alone: list[float], whole: list[float]) -> None:
    a, w = statistics.median(alone), statistics.median(whole)
    ratios = sorted(x / y for x, y in zip(alone, whole, strict=True))
    print(
        f"{title}: tokenizer alone {tokens / a:,.0f} tokens/s ({size / a:.1f} MB/s), prepare "
        f"{tokens / w:,.0f} tokens/s ({size / w:.1f} MB/s), ratio {statistics.median(ratios):.2f} "
        f"({ratios[0]:.2f}-{ratios[-1]:.2f})",
        flush=True,
    )


if __name__ == "__main__":
    main()
