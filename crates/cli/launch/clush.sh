#!/bin/sh
# Needs daqmeter on each host, and ssh without a password. Start: HOSTS='node[1-500]' sh FILE
# Where the hosts share this folder: clush -w "$HOSTS" "cd $PWD && daqmeter ..." is enough.
set -e
name=daqmeter-$(date +%s)-$$
clush -w "$HOSTS" "records=/tmp/$name/; "@QUOTED@
mkdir -p @FOLDER@
clush -w "$HOSTS" --rcopy /tmp/$name --dest @FOLDER@
clush -w "$HOSTS" "rm -r /tmp/$name"
# Each host has a folder here now. Files that are there already stay as they are.
mv -n @FOLDER@$name.*/* @FOLDER@
rmdir @FOLDER@$name.*
daqmeter hosts @FOLDER@
