"""What a round costs each site, and what went wrong."""

from __future__ import annotations

from statistics import fmean

from fedshift.reporting.report.findings import all_records
from fedshift.reporting.report.runs import Run
from fedshift.reporting.report.section import Block, Column, Row, Section, Table, Text
from fedshift.reporting.report.wording import counted, seconds, size

MOST_FAULTS = 200


def cost(run: Run) -> Section | None:
    """Bytes and seconds a round, per site."""
    records = run.results.rounds
    if not records:
        return None
    rows: list[Row] = []
    total_up = total_down = 0
    for site in run.trained:
        told = [record.sites[site] for record in records if site in record.sites and record.sites[site].steps]
        if not told:
            rows.append([site, "0", "–", "–", "–", "–", "–"])
            continue
        up, down = sum(t.bytes_up for t in told), sum(t.bytes_down for t in told)
        total_up, total_down = total_up + up, total_down + down
        rows.append(
            [
                site,
                str(len(told)),
                f"{fmean(t.steps for t in told):.0f}",
                size(up / len(told)),
                size(down / len(told)),
                seconds(fmean(t.seconds for t in told)),
                seconds(max(t.seconds for t in told)),
            ]
        )
    columns = [
        Column("Site", numeric=False),
        Column("Rounds trained"),
        Column("Steps", detail="a round"),
        Column("Sent", detail="a round"),
        Column("Received", detail="a round"),
        Column("Time", detail="mean round"),
        Column("Time", detail="slowest round"),
    ]
    whole = sum(record.seconds for record in records)
    return Section(
        "cost",
        "Bytes and seconds",
        "Means over the rounds in which a site trained; the slowest site decides how long a round takes. Times depend "
        "on "
        "the machine and on what else ran there.",
        [
            Table(columns, rows),
            Text(
                f"In all {size(total_up)} were sent to the server and {size(total_down)} to the sites; "
                f"{counted(len(records), 'round')} took {seconds(whole)}, "
                f"{seconds(whole / len(records))} each on average."
            ),
        ],
    )


def faults(run: Run) -> Section | None:
    """Updates that were left out, and sites that did not answer."""
    rows: list[Row] = []
    for record in all_records(run):
        when = "statistics" if record.round == 0 else f"round {record.round}"
        if record.round > run.results.job.rounds or record in run.results.evaluations:
            when = "evaluation"
        rows += [[when, fault.site, "left out", fault.key, fault.reason] for fault in record.rejected]
        rows += [[when, site, "absent", "", "no usable answer in time"] for site in record.absent]
    if not rows:
        return None
    columns = [Column(text, numeric=False) for text in ("When", "Site", "What", "Part", "Reason")]
    blocks: list[Block] = [Table(columns, rows[:MOST_FAULTS])]
    if len(rows) > MOST_FAULTS:
        blocks.append(Text(f"{len(rows) - MOST_FAULTS} more are in results.json."))
    return Section(
        "faults",
        "Faults",
        "An answer that is left out does not change the model; a site that is absent often has less say in it.",
        blocks,
    )
