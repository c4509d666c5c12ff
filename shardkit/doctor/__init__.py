"""What is not as compact as it could be, and what to do about it.

::

    components ─► places ─► sampling ─► diagnosis ─► mending
                  servers   keys seen   findings     CONFIG SET, parts written anew
"""
