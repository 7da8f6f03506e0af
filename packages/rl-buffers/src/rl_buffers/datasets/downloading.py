"""``fetch``: a file from the network, whole or not at all."""

from __future__ import annotations

import http.client
import os
import shutil
import tempfile
import urllib.request
from pathlib import Path

from rl_buffers.datasets.errors import DatasetError

__all__ = ["fetch"]

_TIMEOUT = 30.0  # seconds without a byte


def fetch(url: str, target: Path) -> Path:
    """Download `url` to `target`; the file appears there when it is complete.

    Raises:
        DatasetError: the network, the server or the disk refuses; the text says where a file from elsewhere belongs.
    """
    if not url.startswith(("http://", "https://")):
        raise DatasetError(f"{url!r} is no http address")
    partial: str | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:
            descriptor, partial = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
            with os.fdopen(descriptor, "wb") as file:
                shutil.copyfileobj(answer, file, 1 << 20)
                size = file.tell()
            promised = answer.headers.get("Content-Length")
        if promised is not None and int(promised) != size:
            raise OSError(f"the connection ended after {size} of {promised} bytes")
        os.replace(partial, target)
        partial = None
    except (OSError, http.client.HTTPException) as error:
        raise DatasetError(
            f"{url} cannot be downloaded: {error}. Fetch it on another way and put it at {target}, or name the path of "
            "the file as the dataset"
        ) from error
    finally:
        if partial is not None:
            Path(partial).unlink(missing_ok=True)
    return target
