"""What is told of an actor that is dead, hangs or does not end."""

from __future__ import annotations

from rl_collectors.ray.library import ray
from rl_collectors.ray.member import RayMember
from rl_core.errors import CollectorError

__all__ = ["cause_of_death", "death", "hang", "late_end"]

_TRACE_SECONDS = 5.0


def cause_of_death(error: Exception) -> str:
    """Ray's reason, without its list of guesses.

    Args:
        error: what waiting for the actor raised.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = next((line for line in lines if line.startswith("The actor is dead because")), lines[0] if lines else "")
    reason = reason.split(" Some common causes include")[0].rstrip(".")
    return reason or type(error).__name__


def death(member: RayMember, error: Exception) -> CollectorError:
    """The error about an actor that is gone."""
    told = CollectorError(
        f"{member} died while {member.phase}: {cause_of_death(error)}. Its last words are in Ray's log of the process. "
        "Pass restart=True to have such actors started anew"
    )
    told.__cause__ = error
    return told


def hang(member: RayMember, seconds: float) -> CollectorError:
    """The error about an actor that does not move."""
    try:
        where = ray.get(member.handle.whereabouts.remote(), timeout=_TRACE_SECONDS)
    except ray.exceptions.RayError:
        if not member.ready:
            return CollectorError(
                f"Ray has not started worker {member.index} within {seconds:g} s: it asks for {dict(member.options)}, "
                f"the cluster has {ray.available_resources()} free of {ray.cluster_resources()}. Ask for less in "
                "remote_configs, use fewer collectors, or look what else keeps the machine busy"
            )
        where = "(it does not answer)"
    return CollectorError(
        f"{member} made no progress for {seconds:g} s while {member.phase}. Where it is:\n{where}\nIf its steps take "
        f"as long as that, pass timeout={seconds * 10:g}"
    )


def late_end(member: RayMember, seconds: float) -> str:
    """About an actor that was killed."""
    return f"{member} did not end within {seconds:g} s and was killed"
