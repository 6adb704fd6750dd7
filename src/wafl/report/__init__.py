"""The page: plain data in, one HTML file out; and figures. What they show is gathered in ``wafl.studies.pages``."""
