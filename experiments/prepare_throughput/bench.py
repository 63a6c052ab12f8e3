"""`firth prepare` against the tokenizer alone: same text, same vocabulary, same cores.

    python experiments/prepare_throughput/bench.py [--rounds 3] [--megabytes 55] [--record]

Both sides run in turn; the figures are medians over the rounds, by the clock and by processor time
(which a busy machine disturbs less). `prepare` is the whole command as a user runs it: it starts
its processes, reads the .jsonl.xz, decompresses, parses, segments, tokenises and writes the store.
The tokenizer alone gets strings in memory and its result is thrown away: `encode_batch_fast` of the
tokenizers library on all cores, by documents or by paragraphs, whichever is faster; for the unigram
model sentencepiece's own batch encoder on as many threads, without the folding of XLNet's code.
"""

import argparse
import json
import lzma
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

DATA = Path(os.environ.get("FIRTH_DATA", Path(__file__).parents[3] / "shared" / "data"))
CORPUS = DATA / "wikipedia_en_sample" / "articles.jsonl.xz"
TOKENIZERS = {
    "wordpiece (bert-base-uncased)": "bert-base-uncased-vocab.txt",
    "byte-level bpe (roberta-base)": "roberta-base-vocab.json",
    "unigram (xlnet-base-cased)": "xlnet-base-cased-spiece.model",
}
COMMAND = "import sys; from firth.commands.prepare import main; sys.exit(main(sys.argv[1:]))"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=float, default=55, help="of text to take")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--record", action="store_true", help="add lines to results.jsonl")
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
            report(title, tokens, size, np.array(alone), np.array(whole), args.record)


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


def time_tokenizer(vocabulary: Path, documents: list[str]) -> np.ndarray:
    """Seconds that the bare library takes for the text."""
    paragraphs = [line for text in documents for line in text.split("\n") if line]
    if vocabulary.suffix == ".model":
        import sentencepiece

        model = sentencepiece.SentencePieceProcessor(model_file=str(vocabulary))
        threads = int(os.environ["RAYON_NUM_THREADS"])
        return seconds(lambda: model.encode(paragraphs, out_type=int, num_threads=threads))
    from firth.tokenizers.load import load_tokenizer

    backend = load_tokenizer(vocabulary)._backend

    def encode(texts: list[str]) -> None:
        backend.encode_batch_fast(texts, add_special_tokens=False)

    return min(seconds(lambda: encode(documents)), seconds(lambda: encode(paragraphs)), key=sum)


def time_prepare(corpus: Path, vocabulary: Path, store: Path, workers: int) -> np.ndarray:
    """Seconds of the whole command in a process of its own."""
    options = [f"--input={corpus}", f"--tokenizer={vocabulary}", f"--output={store}"]
    options += [f"--workers={workers}"]
    return seconds(
        lambda: subprocess.run(
            [sys.executable, "-c", COMMAND, *options], check=True, stdout=subprocess.DEVNULL
        )
    )


def seconds(run) -> np.ndarray:
    """Seconds on the clock and seconds of processor time, of this process and its children."""
    begin = time.perf_counter(), sum(os.times()[:4])
    run()
    return np.subtract((time.perf_counter(), sum(os.times()[:4])), begin)


def report(
    title: str, tokens: int, size: float, alone: np.ndarray, whole: np.ndarray, record: bool
) -> None:
    """Print, and perhaps record, both sides; alone and whole are seconds [rounds, clocks]."""
    for clock, name in enumerate(("elapsed", "processor")):
        ratios = alone[:, clock] / whole[:, clock]
        a, w = np.median(alone[:, clock]), np.median(whole[:, clock])
        result = {
            "tokenizer": title,
            "clock": name,
            "megabytes": round(size, 1),
            "rounds": len(ratios),
            "tokenizer_tokens_per_s": round(tokens / a),
            "prepare_tokens_per_s": round(tokens / w),
            "ratio": round(float(np.median(ratios)), 3),
            "ratios": [round(float(r), 3) for r in ratios],
        }
        print(
            f"{title}, {name} time: tokenizer alone {tokens / a:,.0f} tokens/s ({size / a:.1f} "
            f"MB/s), prepare {tokens / w:,.0f} tokens/s ({size / w:.1f} MB/s), ratio "
            f"{np.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})",
            flush=True,
        )
        if record:
            with (Path(__file__).parent / "results.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
