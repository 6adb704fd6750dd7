"""A study as a page, which ``wafl.report`` draws: what its folder and its data tell, and live while it trains."""
