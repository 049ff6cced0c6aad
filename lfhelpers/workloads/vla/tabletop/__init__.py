"""The synthetic world: scenes, two cameras, words, a scripted expert and a closed-loop simulator.

Everything is a function of (seed, index) and needs numpy and Pillow alone, so a data set is a command, not a download,
and quality can be measured by what matters: does the gripper lift the object that was named?
"""
