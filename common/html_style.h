/* html_style.h - lines of the page's style and script, each list ended by
 * NULL. */
#ifndef FERRY_COMMON_HTML_STYLE_H
#define FERRY_COMMON_HTML_STYLE_H

enum { HEAT_STEPS = 9 }; /* classes h0 to h8: a relative error from 1e-8 to 1 */

extern const char *const html_style[], *const html_script[];

#endif
