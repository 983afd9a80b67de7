"""The tables in ``docs/what-leaves-a-site.md``, made from the array specifications that the server checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from torch import nn

from fedshift.federation.resolve import resolve
from fedshift.methods import method_set
from fedshift.methods.base import ArraySpec
from fedshift.methods.method_set import MethodSet
from fedshift.schema.components import choose
from fedshift.schema.compression import pack, packed_keys
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.tasks.kinds import build_task

ROWS_OF_EVERY_JOB = (
    ("sample count, step count", "2 integers", "every round", "the number of training slices or images at the site"),
    (
        "validation scores, training loss, seconds; the number of parts of a batch, if memory ran out",
        "a few numbers",
        "every round",
        "how well the model works at the site",
    ),
    (
        "test scores",
        "a few numbers",
        "every so-many-th round, if the job has `evaluation.every`",
        "how well the model works at the site",
    ),
    (
        "validation and test scores",
        "a few numbers",
        "at the end",
        "how well the last and the best model work at the site, and its personal model if it has one",
    ),
    (
        "distribution of test scores over cases: number of cases, and of subjects if some have several, mean, standard "
        "deviation, 5 quantiles, confidence interval; where cases lack a class, apart of those that have it and, as "
        "volume of false positives, of those that lack it",
        "at most 11 numbers per score",
        "at the end",
        "how much the scores vary over the site's cases, and how many of them lack a class; over fewer than ten cases "
        "only numbers and mean are sent, and of a single one the mean is its score",
    ),
    (
        "test scores of single cases, without ids",
        "one number per case and score",
        "at the end, if the site's policy has `case_scores: true`",
        "for how many cases the models fail, and by how much",
    ),
    (
        "calibration; for classification the confusion matrix; for segmentation the number of empty predicted volumes, "
        "and of volumes in which a class is missed or invented",
        "46 numbers; classes x classes numbers; 1 number, and 2 per class",
        "at the end",
        "how confident the models are, how many test images the site has of each class, and which are confused, missed "
        "or invented; with fewer than ten cases neither calibration nor the matrix is sent",
    ),
    (
        "scores of each class of a classifier, if the job has them: how many test cases have it and have it not, "
        "AUROC, average precision, F1, balanced accuracy, sensitivity, two thresholds, which are steps of one table "
        "for all sites, and at the first one how many of both kinds were said to have it; if ten cases have it and "
        "ten have not, also intervals and calibration; the intervals of the averages over classes",
        "at most 68 numbers per class, and 2 per average",
        "at the end; nothing of classes with fewer than ten test cases",
        "how many of the test cases have each finding, and how well the model ranks them; of a class that one case "
        "has, the place of that case among the others",
    ),
    (
        "ROC curve of each class",
        "at most 400 numbers per class",
        "at the end, if the site's policy has `case_scores: true`",
        "the order in which the model ranks the cases with the class and those without",
    ),
    (
        "areas under the ROC curve of the federated model and the site's own for each class, numbers of cases, and p",
        "5 numbers per class",
        "at the end, if the job has `evaluation.local` and scores by class, with at least ten test cases",
        "for which classes the site is better off with the federation",
    ),
    (
        "federated model against the site's own, on its test cases: name of the score, number of cases, and of "
        "subjects if some have several, both means, the own model's round, verdict, paired test and its p, about how "
        "many would tell; from ten cases on also interval, deviation and 5 quantiles of the differences; of the site's "
        "own model nothing else leaves but its areas above",
        "3 words, at most 15 numbers",
        "at the end, if the job has `evaluation.local`",
        "whether the site is better off with the federation, and by how much",
    ),
    (
        "pairs of these scores of single cases, without ids",
        "2 numbers per case",
        "at the end, if the job has `evaluation.local` and the site's policy `case_scores: true`",
        "for how many cases the federation's model is better, and by how much",
    ),
    (
        "gradient norm",
        "1 number",
        "at the end, if the job has `evaluation.gradient_norm`",
        "how far the model is from the optimum on the site's validation images",
    ),
    (
        "what `fedshift drift` compares later scans with: the site's answer to a survey (below); of each of six "
        "aspects how far its cases are from each other, and of its validation cases how unsure the model is, as number "
        "of cases, sum and sum of squares of logarithms; in how many validation cases the model found nothing",
        "a survey's; 7 x 3 numbers; 1 number",
        "at the end, if the job has `evaluation.reference`, under the policy's rules for a survey (nothing at all with "
        "noise on `statistics` or `weights`); sums over fewer than `survey_cases` cases stay",
        "as of a survey; how much its scans differ among themselves; how sure the model is of them",
    ),
    (
        "risk curves of the final models, of each structure or class: number of subjects that have it, and at 57 "
        "levels of probability the mean over them of the share that is missed and (of structures) of the share of an "
        "outline that is something else; from ten subjects on also their variances",
        "58 to 229 numbers per structure or class, of validation and of test cases",
        "at the end, if the job has `evaluation.guarantee` and the site's policy allows `statistics`, puts noise on "
        "nothing, has no budget and does not want encryption; structures that fewer than `survey_cases` or `min_cases` "
        "subjects have stay",
        "how sure the models are where they are right and wrong, on average over the site's cases, and how many of "
        "these have the structure or class",
    ),
    (
        "samples and cases of each split, kind, split rule, manifest hash, unknown voxel sizes, what is simulated, "
        "options of the phantom",
        "11 values, and 5 of a phantom",
        "every answer",
        "the size of the data set, whether it has changed, and whether distances in mm are valid",
    ),
    (
        "device model, precision, threads, number of devices",
        "4 values",
        "every answer",
        "the kind of machine at the site",
    ),
    ("fedshift version and source hash", "2 strings", "every answer", "the software version at the site"),
    (
        "the end of the site's privacy ledger: number of releases, SHA-256 of the last",
        "1 number, 1 hash",
        "every answer to a job's statistics and training rounds and to a survey, once something has left with noise",
        "how many answers with noise the site has given in all jobs and surveys; the hash tells nothing of what is in "
        "them, as each holds a secret of the site. All sites that are asked are told it too",
    ),
    (
        "the machine's address in the site's own network, as NVFlare registers it",
        "1 string",
        "when the site connects, and again after a restart",
        "which of the site's machines takes part; it is in the server's log",
    ),
    (
        "answer to `show_stats ID client`",
        "a few words",
        "when an administrator asks",
        "the site's current task and its start; the loss and the seconds of its last answer again",
    ),
    ("type of error", "1 word", "when a task fails", "that the task failed; the full message stays in the site's log"),
)
ROWS_OF_A_SURVEY = {
    "site, dataset, kind, simulated": ("names", "always", "who answers; whether data, or scanners, are simulated"),
    "cases, surveyed": ("a number for each split, and 1 more", "always", "the size of the data set"),
    "classes, annotated, sequences": ("names", "always", "what the site outlines, and on which sequences"),
    "withheld": ("1 sentence", "always", "which rule of its policy makes the site tell counts only; empty if none"),
    "geometry": (
        "for each axis, how many cases have which voxel size, extent in mm (both rounded to 1 %) and number of voxels",
        "from `survey_cases` cases on, if `statistics` are allowed; sizes in mm if as many cases have them",
        "the site's protocols; of a rare one, that some case has it",
    ),
    "volumes": (
        "for each class: number of cases with it, sums of ml and of its square, how many cases have which ml (to 20 %)",
        "the same; of a class that fewer cases have, or whose ml is known in fewer, only the number with it",
        "how often the class occurs and how large it is",
    ),
    "intensities": (
        "for each sequence, and in each of the whole volume, the labels together and one by one, and outside of them: "
        "sums over cases of mean, squared mean and mean square, a histogram as stored (to 3 %) and one normalised",
        "the same, where no two of the sums would differ by fewer cases than that",
        "how bright the site's images are in and outside the labels, not where",
    ),
    "noise": ("1 number", "if the policy has noise on `statistics`", "how much noise is on the histograms"),
    "scanners": (
        "make and model, with the number of cases",
        "if the policy has `scanners: true`",
        "which scanners the site has, where its preparation noted them",
    ),
}
"""Fields of `fedshift.schema.fingerprint.Fingerprint` → shape, when, and what a reader learns."""
SURVEY_NOTE = """\
A survey (`fedshift survey`) is a job of its own and trains nothing. Every site answers once, with these numbers and no
array; they are sums over the cases that are not in its test part, or over all cases of a site that has no others. With
fewer cases than its policy wants, or if it does not allow `statistics`, a site tells the first four rows only; with
noise on `statistics` it tells counts, and normalised histograms of whole volumes with noise on them."""
VALIDATION_NOTE = """\
A validation (`fedshift job --evaluate`) trains nothing. Every site answers once, with these numbers and no array. No
group is of fewer subjects than its policy wants, nor is any sum or difference of what it tells; no score of a single
case leaves. With noise on `statistics` it tells one noisy mean of each model and nothing else."""
ROWS_OF_A_VALIDATION = {
    "site, dataset, kind, manifest_sha256, unknown_spacing": (
        "names, and a fingerprint",
        "always",
        "whose answer it is, and whether its data were changed since the last one",
    ),
    "models: scores": (
        "of each model and score the number of cases, and mean; from ten cases on deviation, five quantiles between "
        "cases and an interval",
        "where enough cases have the score, or lack it",
        "how well the models do on the site's cases",
    ),
    "models: strata": (
        "the same for each value of the columns that the site's table has",
        "if the policy allows `statistics` and names the column, or none, in `strata`",
        "which vendors, field strengths, sexes or ages the site has, with how many cases, and how the models do there",
    ),
    "models: against_first": (
        "mean difference to the first model, with p; from ten cases on deviation, quantiles and an interval",
        "with several models",
        "which model is better at the site",
    ),
    "models: areas": (
        "for each class how many cases have it and have not, the area under the ROC curve with its error, and the "
        "difference to the first model with error and p",
        "of classifiers, for classes that `survey_cases` subjects have and as many have not",
        "how common a class is at the site, and how well a model ranks its cases",
    ),
    "refused, withheld": (
        "sentences",
        "always",
        "which models do not fit the site's data, and what its policy keeps back",
    ),
    "noise": ("1 number", "if the policy has noise on `statistics`", "how much noise is on the means"),
}
"""Fields of `fedshift.schema.validation.SiteValidation` → shape, when, and what a reader learns."""
COMPRESSION_NOTE = """\
Sizes are those of a job with `federation.weights_as: fp32`, the default. With `bf16` or `int8`, each trained array of
two or more dimensions is sent as the difference from the received array, plus the rounding error of earlier answers.
`bf16` takes 2 bytes per number; `int8` takes 1 byte per number and 4 bytes per index of the first axis. A reader who
knows what the site received learns the same as from the array itself, with fewer digits. The rounding error stays in
the site's state."""
MAX_ROWS = 12
"""A larger group of similar arrays gets one row in the table."""
TABLE_HEADER = "| what | shape | bytes | when | what a reader learns from it |\n|---|---|---|---|---|"
TABLE_HEADER_UP = "| what | shape | bytes | when | kind | what a reader learns from it |\n|---|---|---|---|---|---|"
DIGITS_JOB = {
    "schema": 1,
    "name": "digits",
    "task": {
        "name": "digits",
        "kind": "classification",
        "dataset": "digits",
        "sites": ["mnist", "mnistm", "svhn", "usps"],
        "classes": [str(digit) for digit in range(10)],
        "data": {"size": 32, "channels": 3},
        "network": {"name": "digits_cnn"},
        "loss": "ce",
        "optimizer": {"name": "sgd", "lr": 0.01},
        "schedule": {"rounds": 1, "batch_size": 32},
    },
    "methods": {},
    "federation": {"min_sites": 4},
}
"""The job for methods that do not work with segmentation: FRAug's network for digits, ten classes."""


def transmitted_data_page() -> str:
    """The generated part of the page in Markdown: what leaves with every job, in a survey, and with each method."""
    parts = ["## Every job\n", "| what | shape | when | what a reader learns from it |\n|---|---|---|---|"]
    parts += [f"| {' | '.join(row)} |" for row in ROWS_OF_EVERY_JOB]
    parts += ["", COMPRESSION_NOTE, "\n## A survey\n", SURVEY_NOTE, ""]
    parts += ["| what | shape | when | what a reader learns from it |\n|---|---|---|---|"]
    parts += [f"| {name} | {' | '.join(row)} |" for name, row in ROWS_OF_A_SURVEY.items()]
    parts += ["\n## A validation\n", VALIDATION_NOTE, ""]
    parts += ["| what | shape | when | what a reader learns from it |\n|---|---|---|---|"]
    parts += [f"| {name} | {' | '.join(row)} |" for name, row in ROWS_OF_A_VALIDATION.items()]
    parts += [transmitted_data_section(name, reference_job(name)) for name in method_set.available()]
    return "\n".join(parts) + "\n"


def reference_job(name: str) -> JobSpec:
    """The job whose shapes the page shows: prostate, with what the method needs of it; otherwise digits."""
    for protocol, options in (("quick", []), ("quick", ["optimizer.name=sgd"]), (None, ["data.normalise=landmarks"])):
        try:
            return resolve("prostate", name, protocol=protocol, options=options)
        except ConfigError:
            continue
    methods = {method.name: method.config.model_dump(mode="json") for method in method_set.load({name: {}})}
    return JobSpec.parse({**DIGITS_JOB, "methods": methods, "packages": choose([name])}, where="digits")


def transmitted_data_section(name: str, job: JobSpec) -> str:
    """The section for one method, with the shapes that its arrays have in ``job``."""
    methods = MethodSet(job, build_task(job).network())
    if methods.pooled is not None and methods.pooled.name == name:
        return f"\n## {name}\n\nNothing leaves a site: this reference trains on one machine that has all images."
    up, down = methods.up[name], methods.down[name]
    parts = [f"\n## {name}\n", network_line(methods.net, methods.withheld, job)]
    parts += ["", TABLE_HEADER_UP, *_rows(up, kinds=True)] if up else ["", "No further arrays."]
    if down:
        parts += ["\nThe server sends to every site, besides the network:\n", TABLE_HEADER, *_rows(down)]
    return "\n".join(parts)


def network_line(net: nn.Module, withheld: frozenset[str], job: JobSpec) -> str:
    """A sentence on how much of the network is sent every round."""
    state = {key: value.numpy() for key, value in net.state_dict().items()}
    sent = {key: value for key, value in state.items() if key not in withheld}
    weights_as = job.federation.weights_as
    packed = packed_keys(sent, dict(net.named_parameters()), weights_as)
    size = sum(pack(value, weights_as).nbytes if key in packed else value.nbytes for key, value in sent.items())
    network = f"{job.task.network.name} of task {job.task.name}"
    if not sent:
        return f"The network ({network}) stays at the site."
    stays = f"; {len(state) - len(sent)} tensors stay at the site" if withheld else ""
    compressed = f"; {len(packed)} of them as differences in {weights_as}" if packed else ""
    return (
        f"Every round the network after local training ({network}): {len(sent)} tensors, "
        f"{size} bytes{compressed}{stays}."
    )


def _rows(specs: Mapping[str, ArraySpec], *, kinds: bool = False) -> Iterator[str]:
    """Yield one table row per array; a large group that differs only in name and shape gets a single row.

    ``kinds`` adds the column with the kind of array that a site's policy refers to.
    """
    grouped: dict[tuple[str, str, str], list[tuple[str, ArraySpec]]] = {}
    for name, spec in specs.items():
        grouped.setdefault((spec.when, spec.reveals, spec.dtype), []).append((name, spec))
    for (when, reveals, dtype), members in grouped.items():
        often = "once" if when == "once" else "every round"
        often += f" | {members[0][1].kind}" if kinds else ""
        if len(members) > MAX_ROWS:
            total = sum(_bytes(spec) for _, spec in members)
            names = f"`{members[0][0]}` … `{members[-1][0]}`"
            yield f"| {names} | {len(members)} arrays, {dtype} | {total} | {often} | {reveals} |"
            continue
        for name, spec in members:
            shape = "x".join(str(size) for size in spec.shape) or "scalar"
            size = " x ".join([str(_bytes(spec)), *(size for size in spec.shape if isinstance(size, str))])
            yield f"| `{name}` | {shape} {dtype} | {size} | {often} | {reveals} |"


def _bytes(spec: ArraySpec) -> int:
    """Size in bytes, without dimensions whose size is given by name."""
    sizes = [size for size in spec.shape if isinstance(size, int)]
    return int(np.prod(sizes, dtype=int)) * np.dtype(spec.dtype).itemsize
