"""The routes of the pages, by what they show."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter

from command_line.ui.routes import compare, divergence, lineage, memory, plan, rows, run, runs

ROUTERS: Sequence[APIRouter] = (
    runs.router,
    compare.router,
    run.router,
    rows.router,
    memory.router,
    lineage.router,
    plan.router,
    divergence.router,
)
