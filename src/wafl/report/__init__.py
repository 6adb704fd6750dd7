"""The page: plain data in, one HTML file out; and figures. What they show is gathered in ``wafl.studies.pages``."""

from wafl.report.blocks import Block, Code, Figure, Note, Page, Pictures, Section, Stop, Study, Table, Walk, Walks
from wafl.report.page import as_html, write_page

__all__ = [
    "Block",
    "Code",
    "Figure",
    "Note",
    "Page",
    "Pictures",
    "Section",
    "Stop",
    "Study",
    "Table",
    "Walk",
    "Walks",
    "as_html",
    "write_page",
]
