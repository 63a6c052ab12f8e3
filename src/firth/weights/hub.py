"""The Hugging Face hub: models come from it and go to it. Its library is imported when needed."""

from pathlib import Path

from firth.errors import FirthError

# Data files alone: no pickle, no code.
PATTERNS = ["*.json", "*.safetensors", "*.txt", "*.model", "README.md"]


def download(name: str) -> Path:
    """The local folder of `org/name[@revision]`, fetched from the hub.

    Raises FirthError with the hub's own words on the network, the name or a licence.
    """
    from huggingface_hub import snapshot_download

    repository, _, revision = name.partition("@")
    try:
        folder = snapshot_download(
            repository,
            revision=revision or None,
            allow_patterns=PATTERNS,
            ignore_patterns=["*/*"],  # folders hold other formats
        )
    except Exception as error:
        raise FirthError(f"hf:{name} cannot be downloaded: {_reason(error)}") from None
    return Path(folder)


def check_push(name: str) -> None:
    """Raise FirthError for a name that no model can have, and where no token is at hand."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
        owned = name.count("/") == 1
    except HFValidationError:
        owned = False
    if not owned:
        raise FirthError(
            f"--push {name}: expected ORG/NAME, of letters, digits, '-', '_' and '.', 96 at most"
        )
    if not get_token():
        raise FirthError(
            f"--push {name}: no token of the hub is at hand; run `hf auth login`, or set HF_TOKEN"
        )


def push(folder: Path, name: str, *, private: bool = False) -> str:
    """Upload a published directory to the model `org/name` in one commit; returns its address.

    The model is made if there is none, and for its owner alone if `private`; one that exists stays
    as visible as it is. Raises FirthError without network, or without the right to write.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    api = HfApi(library_name="firth")
    try:
        address = api.create_repo(name, private=private or None, exist_ok=True)
        api.upload_folder(
            repo_id=name,
            folder_path=folder,
            commit_message="Upload a model made with Firth",
            allow_patterns=PATTERNS,
        )
    except Exception as error:
        status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
        reason = {
            401: "the hub does not know the token; run `hf auth login`, or set HF_TOKEN to another",
            403: f"the token may not write to {name}; take one with the right to write there",
        }.get(status) or _reason(error)
        raise FirthError(
            f"--push {name}: {folder} is written, but not uploaded: {reason}"
        ) from None
    return str(address)


def _reason(error: Exception) -> str:
    """The first line of an error's message, or its type."""
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)
