"""A played gcloud: `python play_gcloud.py ARGUMENTS`, with the scenario that cloud.py wrote.

Only os and sys are imported: the scripts under test call it hundreds of times.
"""

import os
import sys

STUB = os.environ["STUB"]


def read(name: str) -> str:
    path = f"{STUB}/{name}"
    return open(path).read() if os.path.exists(path) else ""


def write(name: str, text: str, mode: str = "w"):
    with open(f"{STUB}/{name}", mode) as file:
        file.write(text)


def following(name: str, default: str = "") -> str:
    """The next line of a file of the scenario; its last one for ever."""
    lines = read(name).splitlines() or [default]
    number = int(read(f"{name}.next") or 0)
    write(f"{name}.next", str(number + 1))
    return lines[min(number, len(lines) - 1)]


def say(text: str) -> int:
    print(text, file=sys.stderr)
    return 1


def play(arguments: list[str]) -> int:
    write("calls", "\t".join(arguments) + "\n", "a")
    options = dict(a[2:].split("=", 1) for a in arguments if a.startswith("--") and "=" in a)
    assert arguments[:2] == ["compute", "tpus"] and options["zone"] and options["project"]
    group, verb, name, *rest = arguments[2:]
    vm, count = read("vm"), int(read("workers"))
    if group == "queued-resources" and verb == "create":
        problem = following("create")
        if problem or vm:
            return say(problem or "ERROR: ALREADY_EXISTS")
        vm = str(int(read("vms") or 0) + 1)
        write("vms", vm)
        write("vm", vm)
        for worker in range(count):
            os.mkdir(f"{STUB}/vm-{vm}-worker-{worker}")
        return 0
    if not vm:
        return say(f"ERROR: (gcloud) NOT_FOUND: Resource '{name}' was not found")
    if group == "queued-resources" and verb == "describe":
        state = following(f"states-{vm}", "ACTIVE")
        if state == "UNREACHABLE":
            return say("ERROR: gcloud crashed (TransportError): Network is unreachable")
        print(state)
        return 0
    if group == "queued-resources" and verb == "delete":
        assert "--force" in arguments and "--quiet" in arguments
        os.remove(f"{STUB}/vm")
        for worker in range(count):  # the power goes
            pid = read(f"vm-{vm}-worker-{worker}/firth-run/pid")
            os.system(f"kill -KILL -- -{pid} 2>/dev/null" if pid else ":")
        return 0
    assert group == "tpu-vm"
    if verb == "describe":
        print(following("node", "READY"))
        return 0
    silent = following("silent").split() + read(f"broken-{vm}").split()
    status = 0
    for worker in range(count):
        home = f"{STUB}/vm-{vm}-worker-{worker}"
        if options["worker"] not in ("all", str(worker)):
            continue
        if str(worker) in silent:
            say(f"##### Command execution on worker {worker} failed with exit status 255.")
            status = 255
        elif verb == "scp":
            _, _, target = rest[0].partition(":")
            status |= os.spawnvp(os.P_WAIT, "cp", ["cp", name, f"{home}/{target}"])
        else:
            os.chdir(home)
            environment = os.environ | {"HOME": home, "VM": vm, "WORKER": str(worker)}
            command = ["sh", "-c", options["command"]]
            status |= os.spawnvpe(os.P_WAIT, "sh", command, environment)
    return status


sys.exit(play(sys.argv[1:]))
