"""The page: plain data in, one HTML file out that needs nothing else; and figures from arrays.

Only draws: what a page shows is gathered in ``wafl.studies.pages``.
"""
