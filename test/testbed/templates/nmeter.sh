#!/bin/bash
# Debian's busybox has no nmeter. The suite calls "nmeter -d0 %3t" for the time of day in UTC with milliseconds.
now=$EPOCHREALTIME
TZ=UTC printf '%(%T)T.%.3s\n' "${now%.*}" "${now#*.}"
