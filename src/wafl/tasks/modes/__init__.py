"""What layers do besides computing: dropout, running statistics, a layer's output as a space, lanes one by one.

``task.py`` puts them together; none knows another.
"""
