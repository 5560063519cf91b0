"""Alerts: the conditions that need a person, each with its meaning and its remedy.

`penstock.rules.yml`, the tests that `promtool` runs and the runbook are all generated from this
table. It has only alerts that require action; purely informative metrics are on the dashboard.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

PAGE, TICKET = "page", "ticket"
"""Severities: a person is woken; a person looks at it on the next day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert, its page in the runbook, and series that make it fire, or barely not."""

    name: str
    expr: str
    minutes: int
    severity: str
    summary: str
    """The text that Prometheus sends; it fills in `{{ … }}`."""
    meaning: str
    remedy: str
    fires: Mapping[str, str]
    """Series of one value a minute, in promtool's notation, that make it fire."""
    is_quiet: Mapping[str, str]
    """The same kind of series from a healthy cluster."""


_PUMP = 'job="penstock",instance="pump-1"'
_DRAINER = 'job="penstock",instance="drainer-1"'
_SOURCE = 'job="penstock",instance="source-1",source="shop"'

ALERTS: Final[tuple[Alert, ...]] = (
    Alert(
        name="PenstockNodeDown",
        expr='up{job="penstock"} == 0',
        minutes=2,
        severity=PAGE,
        summary="{{ $labels.instance }} does not answer",
        meaning="Prometheus cannot reach the node's status page. A Pump that is down takes no"
        " binlogs and holds back the merge of all others; a Drainer that is down applies nothing;"
        " writers continue with the other Pumps. Where logs have copies, another Pump serves that"
        " of a dead one after some seconds.",
        remedy="Look at the last line of its log. With exit code 2 it names what a person must do"
        " first; in all other cases start it again: it continues where it was. A Pump whose disk is"
        " gone is started with an empty folder and the same node id where its log has copies. Only"
        " when no disk has its log it is declared lost with `penstock ctl lost-pump`, which says"
        " first what that costs.",
        fires={'up{job="penstock",instance="pump-1"}': "0x10"},
        is_quiet={'up{job="penstock",instance="pump-1"}': "1x10"},
    ),
    Alert(
        name="PenstockPumpStarting",
        expr='penstock_pump_state{state="starting"} == 1',
        minutes=5,
        severity=PAGE,
        summary="{{ $labels.instance }} has been starting for more than five minutes",
        meaning="The Pump runs and takes no binlogs yet. It waits for etcd, for a copy of its log"
        " on another Pump, or until its former log, which was taken over, is with every Drainer; or"
        " it reads a log that has lost its index.",
        remedy="Its status page says in `waits_for` which: `curl 127.0.0.1:9250/status`. See that"
        " etcd answers; start the Pumps that are down, or one more; or start the Drainers that are"
        " late: `penstock ctl status <pump>` names them in `closing`.",
        fires={f'penstock_pump_state{{{_PUMP},state="starting"}}': "1x10"},
        is_quiet={f'penstock_pump_state{{{_PUMP},state="starting"}}': "1 1 1 1 _x6"},
    ),
    Alert(
        name="PenstockNoDrainer",
        expr='absent(penstock_drainer_state{state="online"} == 1)',
        minutes=2,
        severity=PAGE,
        summary="no Drainer is online: nothing goes downstream",
        meaning="No Drainer says that it is online; a standby is none. Pumps keep what is not yet"
        " downstream, until their disks are full.",
        remedy="`penstock ctl drainers` shows them all. Start one; if it stops again, the last"
        " line of its log says what it stopped at: most often a DDL that waits for a decision"
        " (`penstock drainer ddl list`), or a row that the downstream refuses.",
        fires={f'penstock_drainer_state{{{_DRAINER},state="online"}}': "0x10"},
        is_quiet={f'penstock_drainer_state{{{_DRAINER},state="online"}}': "1x10"},
    ),
    Alert(
        name="PenstockDrainerBehind",
        expr="penstock_drainer_lag_seconds > 60"
        ' and on (instance) penstock_drainer_state{state="online"} == 1',
        minutes=5,
        severity=PAGE,
        summary="the downstream is {{ $value | humanizeDuration }} behind",
        meaning="What was committed a minute ago is not downstream, and that has lasted for five.",
        remedy="The dashboard's row *Merge* says whether a Pump holds the merge"
        " (`PenstockPumpHoldsMerge` has its remedy). If none does, the downstream is slower than"
        " the writers: see `binlog_drainer_execute_duration_time`, locks and disk there. What"
        ' `mode = "parallel"` in `[apply]` brings and costs is in drainer/guide/applying.md.',
        fires={
            f"penstock_drainer_lag_seconds{{{_DRAINER}}}": "90x10",
            f'penstock_drainer_state{{{_DRAINER},state="online"}}': "1x10",
        },
        is_quiet={
            f"penstock_drainer_lag_seconds{{{_DRAINER}}}": "59x10",
            f'penstock_drainer_state{{{_DRAINER},state="online"}}': "1x10",
        },
    ),
    Alert(
        name="PenstockTooFewCopies",
        expr="penstock_pump_copies < penstock_pump_copies_wanted",
        minutes=2,
        severity=PAGE,
        summary="{{ $labels.instance }}'s log is on {{ $value }} disks only",
        meaning="A Pump's log has fewer copies than `copies` asks for. With fewer than `copies-min`"
        " it acknowledges nothing; with one alone, its disk is the only one that has what no"
        " Drainer has pulled.",
        remedy="Start the Pumps that are down, or one more: a copy joins by itself. `penstock ctl"
        " status <pump>` says in `copies_problem` what it waits for. With `copies-apart` a Pump"
        " with another value of that label is needed.",
        fires={
            f"penstock_pump_copies{{{_PUMP}}}": "1x10",
            f"penstock_pump_copies_wanted{{{_PUMP}}}": "2x10",
        },
        is_quiet={
            f"penstock_pump_copies{{{_PUMP}}}": "2x10",
            f"penstock_pump_copies_wanted{{{_PUMP}}}": "2x10",
        },
    ),
    Alert(
        name="PenstockDamagedPlaces",
        expr="penstock_pump_damaged_places > 0",
        minutes=1,
        severity=PAGE,
        summary="{{ $value }} places on the disk of {{ $labels.instance }} are damaged",
        meaning="Bytes of a log on this disk are not those that were written, and no other disk has"
        " mended them: it has none with the log, or those are away, or damaged at the same place."
        " What lies there cannot be pulled from this disk.",
        remedy="`penstock ctl status <pump>` names files and offsets; the error is PS-3001. Start"
        " the other Pumps with a copy, if any are down, and have it tried again: `penstock ctl"
        " scrub <pump> --wait`. Look at the disk and the kernel's log. Keep a copy of the files"
        " before you change anything.",
        fires={f"penstock_pump_damaged_places{{{_PUMP}}}": "1x10"},
        is_quiet={f"penstock_pump_damaged_places{{{_PUMP}}}": "0x10"},
    ),
    Alert(
        name="PenstockPumpHoldsMerge",
        expr="penstock_drainer_pump_holds_low_water == 1"
        " and on (instance) penstock_drainer_low_water_held_seconds > 30",
        minutes=2,
        severity=PAGE,
        summary="all wait for {{ $labels.nodeID }}",
        meaning="Nothing can be applied beyond what this Pump's stream has reached, because"
        " an earlier commit may still come from it.",
        remedy="`penstock ctl status <drainer>` says why in `held_by_remedy`. A Pump that is down"
        " is started again. One that runs is held by an open Prewrite (`PenstockOpenPrewrite`), or"
        " by its network. One whose disk is gone is started with an empty folder and the same node"
        " id where its log has copies; `penstock ctl lost-pump` is for a log that no disk has.",
        fires={
            f'penstock_drainer_pump_holds_low_water{{{_DRAINER},nodeID="pump-2"}}': "1x10",
            f"penstock_drainer_low_water_held_seconds{{{_DRAINER}}}": "31+60x10",
        },
        is_quiet={
            f'penstock_drainer_pump_holds_low_water{{{_DRAINER},nodeID="pump-2"}}': "1x10",
            f"penstock_drainer_low_water_held_seconds{{{_DRAINER}}}": "1x10",
        },
    ),
    Alert(
        name="PenstockOpenPrewrite",
        expr="penstock_pump_oldest_open_prewrite_seconds > 120",
        minutes=1,
        severity=PAGE,
        summary="a transaction on {{ $labels.instance }} is open for"
        " {{ $value | humanizeDuration }}",
        meaning="Its Prewrite came, and neither Commit nor Rollback; everything after it waits. A"
        " writer is stuck in its commit, or died and what became of the transaction is not found.",
        remedy="`penstock ctl status <pump>` names the transaction and what the resolver last"
        " heard. Writers of ours: see whether that process lives. A TiDB: PD and TiKV must answer"
        " the Pump, which asks them again by itself.",
        fires={f"penstock_pump_oldest_open_prewrite_seconds{{{_PUMP}}}": "121+60x10"},
        is_quiet={f"penstock_pump_oldest_open_prewrite_seconds{{{_PUMP}}}": "3x10"},
    ),
    Alert(
        name="PenstockPumpDiskFills",
        expr="penstock_pump_storage_available_bytes"
        " < 3 * penstock_pump_storage_stop_write_at_available_bytes",
        minutes=5,
        severity=PAGE,
        summary="{{ $labels.instance }} has {{ $value | humanize1024 }}B left",
        meaning="The volume of the Pump's data is close to where it takes no more binlogs.",
        remedy="Purging waits for the slowest Drainer: `penstock ctl drainers` shows whose"
        " checkpoint is old. Start that one again; if it will not come back,"
        " `penstock ctl update-drainer NODE --state offline` lets Pumps drop what only it needs."
        " Else give the Pump a larger volume. Of the data directory delete nothing but what is in"
        " `displaced/`, and `damaged/` of a copy once no Pump's status has `damaged_places`.",
        fires={
            f"penstock_pump_storage_available_bytes{{{_PUMP}}}": "29e9x10",
            f"penstock_pump_storage_stop_write_at_available_bytes{{{_PUMP}}}": "10e9x10",
        },
        is_quiet={
            f"penstock_pump_storage_available_bytes{{{_PUMP}}}": "31e9x10",
            f"penstock_pump_storage_stop_write_at_available_bytes{{{_PUMP}}}": "10e9x10",
        },
    ),
    Alert(
        name="PenstockPumpStorageErrors",
        expr="sum by (instance, type) (increase(binlog_pump_storage_error_count[5m])) > 0",
        minutes=0,
        severity=PAGE,
        summary="the disk of {{ $labels.instance }} fails: {{ $labels.type }}",
        meaning="A write, a sync or a read of the log failed. What was acknowledged is on disk;"
        " the writers of what failed were given an error and go to another Pump.",
        remedy="The Pump's log names file and reason; `dmesg` and the disk's health come next. With"
        " damage on disk `penstock ctl dump <data-dir>` shows where, without changing anything.",
        fires={f'binlog_pump_storage_error_count{{{_PUMP},type="write_binlog"}}': "0+1x10"},
        is_quiet={f'binlog_pump_storage_error_count{{{_PUMP},type="write_binlog"}}': "3x10"},
    ),
    Alert(
        name="PenstockPumpRefuses",
        expr='sum by (instance, reason) (increase(penstock_pump_binlogs_refused_total{reason!~"'
        'cluster_mismatch|not_online"}[5m])) > 0',
        minutes=2,
        severity=TICKET,
        summary="{{ $labels.instance }} refuses binlogs: {{ $labels.reason }}",
        meaning="Writers try such a binlog again, here or at another Pump, so none is lost; but"
        " commits take longer or fail.",
        remedy="`no_space`: see PenstockPumpDiskFills. `overloaded`: the disk is slower than the"
        " writers; add a Pump. `contradiction`: one transaction had two outcomes; the"
        " log names it, and it is a defect of a writer.",
        fires={f'penstock_pump_binlogs_refused_total{{{_PUMP},reason="no_space"}}': "0+5x10"},
        is_quiet={f'penstock_pump_binlogs_refused_total{{{_PUMP},reason="no_space"}}': "5x10"},
    ),
    Alert(
        name="PenstockPumpSlow",
        expr="histogram_quantile(0.9, sum by (instance, le)"
        " (rate(penstock_pump_acknowledge_seconds_bucket[5m]))) > 1",
        minutes=5,
        severity=TICKET,
        summary="{{ $labels.instance }} takes {{ $value | humanizeDuration }} for a binlog",
        meaning="One binlog of ten waits longer than a second to be durable.",
        remedy="Compare `penstock_pump_fdatasync_seconds`: if it is as slow, it is the disk. Else"
        " the Pump has too little processor time, or too many writers: add a Pump.",
        fires={
            f'penstock_pump_acknowledge_seconds_bucket{{{_PUMP},le="1"}}': "0x20",
            f'penstock_pump_acknowledge_seconds_bucket{{{_PUMP},le="2"}}': "0+60x20",
            f'penstock_pump_acknowledge_seconds_bucket{{{_PUMP},le="+Inf"}}': "0+60x20",
        },
        is_quiet={
            f'penstock_pump_acknowledge_seconds_bucket{{{_PUMP},le="0.1"}}': "0+60x20",
            f'penstock_pump_acknowledge_seconds_bucket{{{_PUMP},le="+Inf"}}': "0+60x20",
        },
    ),
    Alert(
        name="PenstockEtcdAway",
        expr="penstock_pump_etcd_reachable == 0",
        minutes=2,
        severity=PAGE,
        summary="{{ $labels.instance }} does not reach etcd",
        meaning="Binlogs are still taken and streamed. But new writers find no Pump, no DDL can be"
        " entered, and timestamps end once their leader is gone.",
        remedy="`etcdctl endpoint health` from the node's machine. The connection keeps the"
        " certificates of the node's start: after a renewal of those restart the node.",
        fires={f"penstock_pump_etcd_reachable{{{_PUMP}}}": "0x10"},
        is_quiet={f"penstock_pump_etcd_reachable{{{_PUMP}}}": "1x10"},
    ),
    Alert(
        name="PenstockLeavesOut",
        expr="sum by (instance, cause, table) (increase(penstock_drainer_rows_left_out_total"
        '{cause!~"filter|loop-back"}[10m])) > 0',
        minutes=0,
        severity=TICKET,
        summary="rows of {{ $labels.table }} are left out: {{ $labels.cause }}",
        meaning="Rows end at the Drainer although no filter was meant to do that. They are counted"
        " exactly; nothing else is missing.",
        remedy="`penstock ctl status <drainer>` has the counts by cause and table under `left_out`,"
        " the log what was the first of each. An `override` was decided with `penstock"
        " drainer ddl`; `penstock drainer ddl list` shows it. `penstock verify` compares the"
        " table.",
        fires={
            f'penstock_drainer_rows_left_out_total{{{_DRAINER},cause="override",table="a.b"}}': (
                "0+5x10"
            )
        },
        is_quiet={
            f'penstock_drainer_rows_left_out_total{{{_DRAINER},cause="filter",table="a.b"}}': (
                "0+5x10"
            )
        },
    ),
    Alert(
        name="PenstockTidbWithoutBinlog",
        expr="max by (instance) (penstock_drainer_tidb_servers_without_binlog) > 0",
        minutes=0,
        severity=PAGE,
        summary="{{ $value }} TiDB servers write no binlog",
        meaning="Rows that such a server changes are missing downstream, and nothing in the stream"
        " shows it.",
        remedy="`penstock ctl status <drainer>` names the servers. Enable the binlog there and"
        " restart them; a server that skips binlogs after an error must be restarted. Then compare"
        " the tables with `penstock verify`.",
        fires={f"penstock_drainer_tidb_servers_without_binlog{{{_DRAINER}}}": "1x10"},
        is_quiet={f"penstock_drainer_tidb_servers_without_binlog{{{_DRAINER}}}": "0x10"},
    ),
    Alert(
        name="PenstockMissedRows",
        expr="increase(penstock_drainer_missed_rows_total[10m]) > 0",
        minutes=0,
        severity=TICKET,
        summary="{{ $value }} rows to change were not downstream",
        meaning="An UPDATE or DELETE did not find its row: someone else writes downstream, or it"
        " began with other rows than upstream.",
        remedy="`penstock verify` names the rows that differ, and repairs them when asked to.",
        fires={f"penstock_drainer_missed_rows_total{{{_DRAINER}}}": "0+5x10"},
        is_quiet={f"penstock_drainer_missed_rows_total{{{_DRAINER}}}": "7x10"},
    ),
    Alert(
        name="PenstockSourceStopped",
        expr="penstock_source_is_syncing == 0",
        minutes=5,
        severity=PAGE,
        summary="source {{ $labels.source }} does not sync",
        meaning="What its server commits does not come into the cluster. Its relay log is still"
        " received, unless the server has gone.",
        remedy="`penstock source status` says in which state it is, and of a statement or a table"
        " that it stopped at, which overrides there are and what each costs. A source that was"
        " paused continues with `penstock source resume`.",
        fires={f"penstock_source_is_syncing{{{_SOURCE}}}": "0x10"},
        is_quiet={f"penstock_source_is_syncing{{{_SOURCE}}}": "1x10"},
    ),
    Alert(
        name="PenstockSourceBehind",
        expr="penstock_source_behind_seconds > 60",
        minutes=5,
        severity=TICKET,
        summary="source {{ $labels.source }} is {{ $value | humanizeDuration }} behind",
        meaning="It reads or commits more slowly than its server writes.",
        remedy="If `penstock_source_relay_position` is at the server's end, reading is not the"
        " cause: see whether the Pumps are slow (PenstockPumpSlow). A server that purges its"
        " binlogs soon should keep them longer in the meantime.",
        fires={f"penstock_source_behind_seconds{{{_SOURCE}}}": "61+60x10"},
        is_quiet={f"penstock_source_behind_seconds{{{_SOURCE}}}": "2x10"},
    ),
    Alert(
        name="PenstockSourceLeavesOut",
        expr="penstock_source_table_left_out == 1 or penstock_source_table_partial == 1",
        minutes=0,
        severity=TICKET,
        summary="{{ $labels.table }} of source {{ $labels.source }} is not followed",
        meaning="Somebody left the table out, or ended its reload; downstream it is no longer what"
        " it is upstream. All other tables continue.",
        remedy="`penstock source status` shows what was left out. `penstock source reload"
        " DB.TABLE` loads it again while the rest continues.",
        fires={f'penstock_source_table_left_out{{{_SOURCE},table="shop.t"}}': "1x10"},
        is_quiet={f'penstock_source_table_left_out{{{_SOURCE},table="shop.t"}}': "0x10"},
    ),
)
