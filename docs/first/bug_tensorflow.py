import tensorflow as tf

from safeops import safe_log, safe_where

x = tf.Variable([0.0, 4.0])


def slope(f):
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(f(x))
    return tape.gradient(y, x).numpy().tolist()


# The bug
naive = lambda x: tf.where(x > 0, tf.math.log(x), 0.0)
assert str(slope(naive)) == "[nan, 0.25]"

# The cure
safe = lambda x: safe_where(x > 0, x, tf.math.log, fill_value=0, placeholder=1)
assert slope(safe) == [0, 0.25]

# The same, ready-made
ready = lambda x: safe_log(x, fill_value=0)
assert slope(ready) == [0, 0.25]
