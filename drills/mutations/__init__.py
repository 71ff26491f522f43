"""Checks the tests: which of 200 small changes of the package (mutations) make a test fail?"""
