"""What runs inside the user's process: one sitecustomize that starts the hooks of a trial, each by its name.

The files of a hook are copied into the trial's folder as the package `zenithtune_hooks`, since zenith_tune need not be
installed where the program trains. So they run on Python 3.8, import nothing but one another, and do so relatively.
`injection` is the tuner's side: which files a trial has, and the lines that its hooks wrote.
"""
