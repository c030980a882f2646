/* report_style.h - what report_html.c puts into the head and the end of its page, line by line;
 * NULL ends it. */
#ifndef FERRY_VALIDATE_REPORT_REPORT_STYLE_H
#define FERRY_VALIDATE_REPORT_REPORT_STYLE_H

enum { HEAT_STEPS = 9 }; /* classes h0 to h8: a relative error from 1e-8 to 1 */

extern const char *const report_style[], *const report_script[];

#endif
