"""Which libraries training imports beyond torch when it first needs them."""

from __future__ import annotations

from fedshift.schema.task import TaskSpec


def libraries(task: TaskSpec) -> tuple[str, ...]:
    """Names of modules that are worth importing in a process before it is forked.

    Torch's compiler, which its optimisers import at their first step though nothing is compiled, takes a second and
    70 MB, MONAI three seconds and 190 MB. Workers that are forked after that share both.
    """
    if task.kind != "segmentation":
        return ("torch._dynamo",)
    surfaces = ("torch._dynamo", "scipy.ndimage", "scipy.spatial")
    listed = not isinstance(task.data.get("augmentation", ""), str)
    theirs = listed or any(name.startswith("monai.") for name in (task.network.name, task.loss.name))
    return (*surfaces, "monai") if theirs else surfaces
