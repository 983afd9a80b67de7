"""Classification of pictures: one class each, classes in order, or several findings at once.

``task`` puts it together; ``spec`` has the options, ``pictures`` the data, ``losses`` the losses, ``by_class`` what is
told of each class.

**Findings** (``data.multi_label``) are (B, K) float32: 1 if a picture has the finding, 0 if not, NaN if nobody has
said. Mixing two pictures keeps what is unknown so, and no loss or score counts it.
"""
