"""Estimators of the lower bound from sampled rows and functions (Evans and Nair 2020), and their control variates."""
