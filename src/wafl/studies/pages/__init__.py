"""A study as a page: what its folder tells, what is measured on its data, and live while it trains.

The page itself is drawn by ``wafl.report``.
"""
