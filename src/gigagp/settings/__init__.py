"""What an argument may be: checks of settings, their JSON, classes of users in files, short texts, and seeds.

Nothing here knows what a Gaussian process is. What a particular class accepts stands in that class.
"""
