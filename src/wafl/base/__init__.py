"""Provide the foundations of all folders: options, errors, random draws, files, norms, bounds, checks.

Modules in this folder must not import any other folder of the package.
"""
