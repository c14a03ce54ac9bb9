"""The replay memory: a byte budget, the images under it, and the file they are saved in."""
