"""Pure functions from Program to Program, one file each; `autobatch.pipeline` has their order."""
