"""The model card: README.md of a published directory, which the hub shows.

It says what the model is, what it came from and how it did, as far as the workdir knows. What
nothing here can know, its licence above all, the user says.
"""

import os
import re
from pathlib import Path

from firth import recipe
from firth.errors import FirthError
from firth.models.model import parameter_count
from firth.training.journal import measured_at
from firth.weights.config import architecture
from firth.weights.packaged import ORIGINS
from firth.weights.read import Saved

TASKS = {
    "classifier": "text-classification",
    "choice": "multiple-choice",
    "mlm": "fill-mask",
    "lm": "text-generation",
}
# Task of finetune.py -> (data set of the hub, its configuration)
DATASETS = {name: ("nyu-mll/glue", name) for name in ("cola", "sst2", "mrpc", "qqp", "stsb")}
DATASETS |= {name: ("nyu-mll/glue", name) for name in ("mnli", "qnli", "rte", "wnli")}
SHOWN = ("objective.name", "data.length", "batch_size", "accumulate", "schedule.name")
SHOWN += ("schedule.lr", "schedule.warmup", "optimizer.name", "optimizer.weight_decay", "seed")


def model_card(saved: Saved, *, license: str = "", base_model: str = "") -> str:
    """A README.md with the hub's front matter.

    `license` is an identifier of the hub (apache-2.0), `base_model` a name there (org/name). The
    default of the latter is the name of the weights that the run started from, if they have one.
    """
    from huggingface_hub import ModelCardData

    run = _Run(saved) if saved.layout == "workdir" else None
    task = next((tag for head, tag in TASKS.items() if head in saved.heads), "feature-extraction")
    base_model = base_model or (run.base_model if run else "")
    results = run.results(task) if run else []
    data = ModelCardData(
        library_name="transformers",
        license=license or None,
        base_model=base_model or None,
        pipeline_tag=task,
        tags=[saved.spec["family"], "firth"],
        datasets=run.datasets if run else None,
        metrics=sorted({r.metric_type for r in results}) or None,
        model_name=architecture(saved) if results else None,
        eval_results=results or None,
    )
    sections = [_model(saved), _use(saved)]
    sections += [run.text()] if run else []
    base = (
        f"It started from [{base_model}](https://huggingface.co/{base_model})."
        if base_model
        else ""
    )
    said = f"Licence: {license}." if license else "Licence: not stated."
    sections.append(f"## Origin and licence\n\n{base}\n{said}".replace("\n\n\n", "\n\n"))
    return f"---\n{data.to_yaml().strip()}\n---\n\n" + "\n\n".join(sections) + "\n"


def amended(text: str, *, license: str = "", base_model: str = "") -> str:
    """A card that exists, with these fields of its front matter replaced.

    Raises FirthError if the front matter is no YAML.
    """
    from huggingface_hub import ModelCard

    try:
        card = ModelCard(text, ignore_metadata_errors=True)
    except Exception as error:
        raise FirthError(f"README.md: its front matter cannot be read: {error}") from None
    card.data.license = license or card.data.license
    card.data.base_model = base_model or card.data.base_model
    return str(card)


def _model(saved: Saved) -> str:
    spec = saved.spec
    positions = f"up to {spec['max_length']:,} positions" if "max_length" in spec else "any length"
    labels = f", labels {', '.join(saved.labels)}" if saved.labels else ""
    return f"""# {architecture(saved)}

A {spec["family"].upper()} encoder made with Firth: {spec["num_layers"]} layers,
{spec["hidden_size"]} wide, {spec["num_heads"]} heads, {spec["vocab_size"]:,} tokens,
{positions}, {parameter_count(saved.params):,} parameters.
Heads: {", ".join(saved.heads) or "none"}{labels}."""


def _use(saved: Saved) -> str:
    """How to load it, and what it answers."""
    name = architecture(saved)
    verb = 'encoder.predict(["a text"])' if "classifier" in saved.heads else 'encoder(["a text"])'
    return f"""## How to load it

With Firth:

    import firth

    encoder = firth.load("this directory")  # or hf:org/name
    {verb}

With transformers:

    from transformers import AutoTokenizer, {name}

    tokenizer = AutoTokenizer.from_pretrained("this directory")
    model = {name}.from_pretrained("this directory")
    model(**tokenizer("a text", return_tensors="pt"))"""


class _Run:
    """What the workdir of a run says of it."""

    def __init__(self, saved: Saved):
        self.folder, self.step = saved.source, saved.step
        self.config = recipe.read(saved.source)
        self.fields = recipe.flatten(self.config)
        self.base_model = published_base(self.config)
        self.task = self.fields.get("data.task") or ""
        self.datasets = [DATASETS[self.task][0]] if self.task in DATASETS else None
        self.measured = self._measured()

    def _measured(self) -> dict[str, float]:
        """{"dev/accuracy": value} of the published step; test sets are measured at the end."""
        if not (self.folder / "metrics.jsonl").is_file():
            return {}
        return measured_at(self.folder, self.step)

    def data(self) -> str:
        """What the run learned from, by name; folders of this machine stay out."""
        if self.task in DATASETS or self.task.startswith("tfds:"):
            return self.task
        names = [self.fields.get(name) for name in ("data.train", "data.store")]
        return next((Path(name.rstrip("/")).name for name in names if name), "")

    def results(self, task: str) -> list:
        """The measured values as the front matter has them; empty without any."""
        from huggingface_hub import EvalResult

        dataset, config = DATASETS.get(self.task, (self.data() or "unnamed", None))
        return [
            EvalResult(
                task_type=task,
                dataset_type=dataset,
                dataset_name=self.data() or "unnamed",
                dataset_config=config,
                dataset_split=name.partition("/")[0],
                metric_type=name.partition("/")[2],
                metric_value=round(value, 4),
            )
            for name, value in self.measured.items()
        ]

    def text(self) -> str:
        """How it was trained, and how it did."""
        lines = ["## Training", "", f"Data: {self.data() or 'not recorded'}."]
        lines += [f"Step {self.step:,} of the run."] if self.step else []
        if command := self.command():
            lines += ["", f"    {command}"]
        shown = [name for name in SHOWN if self.fields.get(name) not in (None, "")]
        lines += ["", "| field | value |", "|---|---|"]
        lines += [f"| {name} | {self.fields[name]} |" for name in shown]
        if self.measured:
            lines += ["", "## Results", "", "| measured | value |", "|---|---|"]
            lines += [f"| {name} | {value:.4g} |" for name, value in self.measured.items()]
        return "\n".join(lines)

    def command(self) -> str:
        """The command that env.txt records, without the folders of this machine; "" without it."""
        path = self.folder / "env.txt"
        line = path.read_text().partition("\n")[0] if path.is_file() else ""
        words = line.removeprefix("command: ").split()[1:]  # the first is the program
        if words[:1] != ["train"]:
            return ""
        return "firth " + " ".join(re.sub(r"(?<![\w.])(/[^/=:, ]+)+/?", _last, w) for w in words)


def _last(found: re.Match) -> str:
    return Path(found[0]).name


def published_base(config) -> str:
    """The published weights at the beginning of a run: "org/name", or "" if there are none.

    They may be those of a run that this one started from.
    """
    seen = set()
    while (start := str(config.get("init_from") or "")) and start not in seen:
        seen.add(start)
        if start.startswith("hf:"):
            return start.removeprefix("hf:").partition("@")[0]
        if start in ORIGINS and not os.path.exists(start):
            return ORIGINS[start]
        if not (Path(start) / "checkpoints").is_dir():
            break
        config = recipe.read(Path(start))
    return ""
