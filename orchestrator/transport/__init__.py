"""Ways to reach a host."""

import logging

# Paramiko reports refused channels and closed sockets on its own logger; our errors say the same in a sentence.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
