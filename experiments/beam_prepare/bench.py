"""`firth prepare --runner direct` beside `firth prepare`: same bytes, throughput and peak memory.

    python experiments/beam_prepare/bench.py [--megabytes 20] [--record]

Each command runs in a process of its own, on the cores given: the local path with 1 and 2 workers,
Beam's direct runner with 1 (in the process itself) and 2 (worker processes). Stores are compared
file by file. Peak memory is the largest sum of the proportional set sizes (PSS) of the command and
all processes under it, looked at ten times a second (Linux).
"""

import argparse
import contextlib
import json
import lzma
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DATA = Path(os.environ.get("FIRTH_DATA", Path(__file__).parents[3] / "shared" / "data"))
CORPUS = DATA / "wikipedia_en_sample" / "articles.jsonl.xz"
VOCABULARY = DATA / "vocabs" / "bert-base-uncased-vocab.txt"
COMMAND = "import sys; from firth.commands.prepare import main; sys.exit(main(sys.argv[1:]))"
BEAM = ["--runner=direct", "--"]
WAYS = {
    "local, 1 worker": ["--workers=1"],
    "local, 2 workers": ["--workers=2"],
    "Beam direct, 1 worker": [*BEAM, "--direct_num_workers=1"],
    "Beam direct, 2 workers": [
        *BEAM,
        "--direct_num_workers=2",
        "--direct_running_mode=multi_processing",
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--megabytes", type=float, help="of text to take (default: all of it)")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--record", action="store_true", help="add lines to results.jsonl")
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    with tempfile.TemporaryDirectory() as folder:
        corpus = sample(Path(folder) / "corpus.jsonl", args.megabytes) if args.megabytes else CORPUS
        first = None
        for way, options in WAYS.items():
            store = Path(folder) / way.replace(" ", "-")
            where = [f"--input={corpus}", f"--tokenizer={VOCABULARY}", f"--output={store}"]
            result = {"way": way, **measure([*where, *options])}
            tokens = json.loads((store / "manifest.json").read_text())["tokens"]
            first = first or store
            result |= {
                "tokens": tokens,
                "tokens_per_s": round(tokens / result["seconds"]),
                "tokens_per_processor_s": round(tokens / result["processor_seconds"]),
                "same_bytes": same(first, store),
            }
            print(json.dumps(result), flush=True)
            if args.record:
                with (Path(__file__).parent / "results.jsonl").open("a") as file:
                    file.write(json.dumps(result) + "\n")


def sample(path: Path, megabytes: float) -> Path:
    """Write the first articles to `path`, so many millions of bytes."""
    with lzma.open(CORPUS, "rb") as source, path.open("wb") as target:
        for line in source:
            if target.tell() >= megabytes * 1e6:
                break
            target.write(line)
    return path


def measure(options: list[str]) -> dict:
    """Seconds by the clock and of the processors, and peak memory in MB, of one command."""
    begin, used = time.perf_counter(), sum(os.times()[2:4])
    with tempfile.TemporaryFile() as told:
        command = [sys.executable, "-c", COMMAND, *options]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=told)
        peak = 0
        while process.poll() is None:
            peak = max(peak, sum(map(pss, family(process.pid))))
            time.sleep(0.1)
        if process.returncode:
            told.seek(0)
            raise SystemExit(told.read().decode())
    return {
        "seconds": round(time.perf_counter() - begin, 1),
        "processor_seconds": round(sum(os.times()[2:4]) - used, 1),
        "peak_mb": round(peak / 1e3),
        "load": round(os.getloadavg()[0], 1),
    }


def family(pid: int) -> list[int]:
    """A process and all under it."""
    found = [pid]
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in thread.read_text().split():
                found += family(int(child))
    return found


def pss(pid: int) -> int:
    """Kilobytes of a process, what it shares divided by those that share it."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0


def same(one: Path, other: Path) -> bool:
    """Whether two stores have the same files with the same bytes."""
    names = [{p.relative_to(s) for p in s.rglob("*") if p.is_file()} for s in (one, other)]
    return names[0] == names[1] and all(
        (one / name).read_bytes() == (other / name).read_bytes() for name in names[0]
    )


if __name__ == "__main__":
    main()
