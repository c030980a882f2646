/* tensor_table.h - the tensors that differ, as text: a line each, and what their names are in the
 * files. Columns that do not fit into TABLE_WIDTH are shown by -v. */
#ifndef FERRY_VALIDATE_REPORT_TENSOR_TABLE_H
#define FERRY_VALIDATE_REPORT_TENSOR_TABLE_H

#include "common/strbuf.h"
#include "validate/compare/compare.h"

enum { TABLE_WIDTH = 100 };

/* The worst first, and those of a kind that have no numbers (one side has no such tensor, or of
 * another shape) together; verbose: each of them, and all columns. */
void tensor_table_text(struct strbuf *out, struct comparison *c, bool verbose);
/* The names of the same tensors in the files of A and B, kind by kind; nothing where these are the
 * names in the table. */
void stored_names_table_text(struct strbuf *out, struct comparison *c, bool verbose);

#endif
