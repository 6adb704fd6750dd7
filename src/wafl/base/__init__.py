"""What every room may use and that knows no room: options, errors, random draws, files, norms, bounds, checks.

Nothing in here may import another folder of the package.
"""
