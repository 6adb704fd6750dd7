"""Turn a study into a page: from its folder, from measurements on its data, and live during training.

``wafl.report`` draws the page.
"""
