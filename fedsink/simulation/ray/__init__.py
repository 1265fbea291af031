"""`engine=ray`: cohorts of virtual clients in Ray actors, on this machine or on a cluster."""
