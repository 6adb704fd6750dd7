"""What every room may use and that knows no room: nothing in here imports another folder of the package."""
