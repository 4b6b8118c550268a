"""Reads and writes folders in the LF-XMC layout, in its JSON and its sparse text form.

The files of a folder decide its form. If both forms are complete, JSON is read, since only it has
metadata. `json_text.py` and `sparse_text.py` describe the files.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Literal

from service.core.errors import InvalidData
from service.core.files.atomic import new_folder
from service.core.files.lines import find, write_lines
from training.datasets.dataset import Dataset, Propensity, check_fields
from training.datasets.lf_xmc import filter_pairs, json_text, sparse_text
from training.datasets.lf_xmc.description import FILE, description_bytes, read_description

Layout = Literal["json", "sparse"]

LAYOUTS: dict[Layout, ModuleType] = {"json": json_text, "sparse": sparse_text}


def read(
    folder: Path | str,
    *,
    propensity: Propensity | None = None,
    fields: tuple[str, ...] | None = None,
) -> Dataset:
    """Read and validate a folder.

    Arguments replace the values of `dataset.json`. The defaults are a propensity of 0.55 and 1.5,
    texts of title and content, and the folder's name. A uid is unique within its file only.

    Raises:
        InvalidData: names file, line and field of the first mistake, or the missing files.
    """
    folder = Path(folder)
    layout = detect_layout(folder)
    description = read_description(folder)
    if propensity is not None:
        description = replace(description, propensity=propensity)
    if fields is not None:
        check_fields(fields)
        description = replace(description, fields=fields)
    dataset: Dataset = LAYOUTS[layout].read(folder, description)
    return dataset


def write(
    dataset: Dataset, folder: Path | str, *, layout: Layout = "json", compress: bool = True
) -> None:
    """Write a new folder that `read` reads back equal; it appears complete or not at all.

    Raises:
        InvalidData: the folder exists already or cannot be written.
        InvalidInput: the layout cannot store a part of the data set.
    """
    with new_folder(Path(folder)) as temporary:
        LAYOUTS[layout].write(dataset, temporary, compress=compress)
        for name, split in ((filter_pairs.TRAIN, dataset.train), (filter_pairs.TEST, dataset.test)):
            write_lines(temporary / name, filter_pairs.filter_lines(split.filtered))
        write_lines(temporary / FILE, [description_bytes(dataset)])


def detect_layout(folder: Path) -> Layout:
    """Return the form whose files all exist; raises `InvalidData` that names missing files."""
    if not folder.is_dir():
        raise InvalidData(folder, "is not a folder")
    missing = {
        layout: [name for name in module.REQUIRED if find(folder, name) is None]
        for layout, module in LAYOUTS.items()
    }
    for layout, names in missing.items():
        if not names:
            return layout
    # For a folder with some files of one form, only the missing files of that form are named.
    begun = [layout for layout in LAYOUTS if len(missing[layout]) < len(LAYOUTS[layout].REQUIRED)]
    wanted = " or ".join(", ".join(missing[layout]) for layout in begun or LAYOUTS)
    raise InvalidData(folder, f"is not a data set: missing {wanted} (each may end in .gz)")
