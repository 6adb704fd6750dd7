"""Objectives that train on other examples than the client has, made at random, whatever the model.

One file each.
"""
