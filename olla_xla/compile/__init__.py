"""What touches JAX: the decorator, the hook, stored plans, XLA's own figures."""

from hlo.late import late_modules

__getattr__ = late_modules(
    __name__,
    "assignment first_use gpu_code host_memory objection own_places refused rematerialization "
    "second_tries stages together",
)
