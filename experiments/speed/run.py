"""Has anything become slower? Short versions of all benchmarks on a CPU, beside what is recorded.

    python experiments/speed/run.py [--only steps generation ...] [--record] [--smallest]

Each case times Firth and another side in turn, and its figure is the median of the ratios of the
rounds, other to Firth: the higher the better. It is compared with the last one that results.jsonl
has from the same kind of machine (CPU and number of cores). What looks more than 10 % slower is
measured once more, and the better of the two counts. Exit status: 0 nothing is slower, 1 something
is or a case failed, 2 wrong use.
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import cases

HERE = Path(__file__).parent
SLOWER = 0.9  # of the recorded ratio
SKIPPED = "skipped"
CROWDED = 0.5  # load a core before the first case


def machine() -> dict:
    """{"cpu", "cores"}: what counts as the same kind of machine."""
    fields = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    kind = f"family {fields.get('cpu family')} model {fields.get('model')}"
    return {"cpu": f"{fields.get('model name')}, {kind}", "cores": len(os.sched_getaffinity(0))}


def measure(case: str, smallest: bool) -> dict:
    """{name: {"firth", "other": seconds of each round}} of a case in its own process, or a reason.

    The reason is {"skipped" or "failed": in words}.
    """
    command = [sys.executable, str(HERE / "run.py"), "--case", case]
    done = subprocess.run(
        [*command, *(["--smallest"] if smallest else [])],
        capture_output=True,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"},
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return {"failed": lines[-1] if lines else f"the process ended with {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def measure_here(case: str, smallest: bool) -> dict:
    """The same, in this process."""
    sizes = (cases.SMALLEST if smallest else cases.SHORT)[case]
    try:
        found = cases.FUNCTIONS[case](**sizes)
    except cases.SkippedError as error:
        return {SKIPPED: str(error)}
    return {
        name: {
            side: [round(second, 5) for second in seconds]
            for side, seconds in zip(("firth", "other"), pair, strict=True)
        }
        for name, pair in found.items()
    }


def ratio(seconds: dict) -> float:
    """The median over the rounds of how many times as long the other side takes."""
    pairs = zip(seconds["other"], seconds["firth"], strict=True)
    return round(statistics.median(other / firth for other, firth in pairs), 4)


def recorded(path: Path, kind: dict) -> dict[tuple, float]:
    """{(case, name): the last ratio on this kind of machine at the same size}."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        row = json.loads(line)
        if kind.items() <= row.items():
            found[row["case"], row["name"]] = row["ratio"]
    return found


def is_slower(key: tuple, now: float, before: dict) -> bool:
    """Whether a ratio is more than 10 % below the recorded one, if there is one."""
    return now < SLOWER * before.get(key, 0.0)


def run_case(case: str, smallest: bool, before: dict) -> dict:
    """What `measure` returns, with the better of two measurements of what looks slower."""
    found = measure(case, smallest)
    if "failed" in found or SKIPPED in found:
        return found
    if any(is_slower((case, name), ratio(each), before) for name, each in found.items()):
        again = measure(case, smallest)
        for name in found.keys() & again.keys():
            found[name] = max(found[name], again[name], key=ratio)
    return found


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--only", nargs="+", choices=cases.SHORT, help="these cases")
    add("--record", action="store_true", help="add the ratios to the results")
    add("--smallest", action="store_true", help="in a minute, to see that it works")
    add("--results", type=Path, default=HERE / "results.jsonl")
    add("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        print(json.dumps(measure_here(args.case, args.smallest)))
        return 0
    kind = machine() | {"smallest": args.smallest}
    before, slower, rows = recorded(args.results, kind), [], []
    print(f"{kind['cpu']}, {kind['cores']} cores, load {os.getloadavg()[0]:.1f}")
    if os.getloadavg()[0] > CROWDED * kind["cores"]:
        print("other jobs run here: PyTorch suffers more from them, so these ratios are too high")
    if not before:
        print("nothing is recorded on this kind of machine; --record keeps these")
    for case in cases.SMALLEST if args.smallest else cases.SHORT:
        if args.only and case not in args.only:
            continue
        found = run_case(case, args.smallest, before)
        if reason := found.get("failed") or found.get(SKIPPED):
            print(f"{case}: {'failed' if 'failed' in found else SKIPPED}: {reason}", flush=True)
            slower += [case] if "failed" in found else []
            continue
        for name, seconds in found.items():
            now, then = ratio(seconds), before.get((case, name))
            line = f"{case}, {name}: {statistics.median(seconds['firth']):.4g} s, ratio {now:.3g}"
            line += f" (recorded {then:.3g}, {now / then - 1:+.0%})" if then else ""
            if is_slower((case, name), now, before):
                slower.append(f"{case}, {name}")
                line += " SLOWER"
            print(line, flush=True)
            rows.append(kind | {"case": case, "name": name, "ratio": now} | seconds)
    if args.record:
        record(args.results, rows)
    print(f"slower: {'; '.join(slower)}" if slower else "nothing is slower")
    return 1 if slower else 0


def record(path: Path, rows: list[dict]) -> None:
    """Add a line for each ratio, with the date, the commit and the load."""
    from firth.training.journal import commit

    about = {"date": datetime.date.today().isoformat(), "commit": commit()}
    about["load"] = round(os.getloadavg()[0], 1)
    with path.open("a") as file:
        for row in rows:
            file.write(json.dumps(about | row) + "\n")


if __name__ == "__main__":
    sys.exit(main())
