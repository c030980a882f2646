/* tensor_table.h - differing tensors, and their names in the files, as tables
 * of text. Columns that do not fit into TABLE_WIDTH need -v. */
#ifndef FERRY_VALIDATE_REPORT_TENSOR_TABLE_H
#define FERRY_VALIDATE_REPORT_TENSOR_TABLE_H

#include "common/strbuf.h"
#include "validate/compare/compare.h"

enum { TABLE_WIDTH = 100 };

/* Adds the table, the worst tensor first. Tensors of one kind without numbers
 * (on one side only, or with different shapes) share a line. verbose: a line
 * for each, and all columns. */
void tensor_table_text(struct strbuf *out, struct comparison *c, bool verbose);
/* Adds the names of these tensors in the files, kind by kind; nothing if they
 * equal the names in the table. */
void stored_names_table_text(struct strbuf *out, struct comparison *c, bool verbose);

#endif
