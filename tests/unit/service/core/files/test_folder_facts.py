"""Checksums of files are recorded and verified, and the error names every difference."""

from pathlib import Path

import pytest

from service.core.errors import BundleAltered, BundleMissing
from service.core.files import folder_facts
from service.core.files.folder_facts import FileFacts, file_facts, verify_files


def test_the_message_names_the_file_and_the_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The expected SHA-256 of "abc" is that of FIPS 180-2."""
    (tmp_path / "inner").mkdir()
    file = tmp_path / "inner/file"
    file.write_bytes(b"abc")
    facts = file_facts(tmp_path)
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert facts == {"inner/file": FileFacts(bytes=3, sha256=digest)}
    verify_files(tmp_path, facts)
    file.write_bytes(b"abd")
    with pytest.raises(BundleAltered, match="inner/file differs from its recorded SHA-256"):
        verify_files(tmp_path, facts)
    file.write_bytes(b"ab")
    with pytest.raises(BundleAltered, match="inner/file has 2 bytes instead of the recorded 3"):
        verify_files(tmp_path, facts)
    file.unlink()
    with pytest.raises(BundleMissing, match="inner/file is missing"):
        verify_files(tmp_path, facts)

    def refuse(*_: object) -> None:  # simulated, because root may read every file
        raise PermissionError(13, "Permission denied")

    file.write_bytes(b"abc")
    monkeypatch.setattr(folder_facts.hashlib, "file_digest", refuse)
    with pytest.raises(BundleMissing, match="file cannot be read: Permission denied"):
        verify_files(tmp_path, facts)
