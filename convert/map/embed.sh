#!/bin/sh
# embed.sh FILE... - prints a C file with the table of convert/map/embedded.h.
set -eu
echo '#include "convert/map/embedded.h"'
for file; do
    name=$(basename "$file" | tr -c 'A-Za-z0-9\n' '_')
    printf 'static const char text_%s[] =\n' "$name"
    sed 's/\\/\\\\/g; s/"/\\"/g; s/^/    "/; s/$/\\n"/' "$file"
    echo ';'
done
echo 'const struct embedded_file embedded_models[] = {'
for file; do
    name=$(basename "$file" | tr -c 'A-Za-z0-9\n' '_')
    printf '    {"%s", text_%s, sizeof text_%s - 1},\n' "$(basename "$file")" "$name" "$name"
done
echo '};'
printf 'const size_t num_embedded_models = %d;\n' "$#"
